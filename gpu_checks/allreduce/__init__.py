"""The check ``allreduce``: see ``check``; ``ranks`` starts a process for each GPU, ``rank`` is what runs in one."""
