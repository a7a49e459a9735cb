"""The check ``p2p``: see ``check``; ``steps`` is what its worker does, ``process`` how that is killed."""
