"""The commands, a module each: a function that `optree._cli.app` names, and what only it needs.

In come arguments and what is on disk; out go lines on stdout, and a `typer.Exit` or an `OptreeError`. What two commands share stands in
`optree._cli`.
"""
