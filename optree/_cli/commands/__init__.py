"""The commands, a module for each or for two that belong together: functions that `optree._cli.app` names, and what they need.

In come arguments and what is on disk; out go lines on stdout, and a `typer.Exit` or an `OptreeError`. What several share stands in
`optree._cli`, but for `run`, by which `load`, `replay` and `fork` start a program.
"""
