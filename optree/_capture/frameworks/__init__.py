"""Agent frameworks, a module or a folder each: what they tell of runs, steps, tools and retries.

In come their callbacks, events and hooked functions; out go sessions, turns and ops, by `nesting`. The calls of models that the wire sees
stand in them; those that it does not see are recorded from what the framework tells. Nothing of a framework is imported here.
"""
