"""The check ``decode``: see ``check``; ``stack`` has the step's parts in their order."""
