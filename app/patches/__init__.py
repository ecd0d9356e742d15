"""Launch-time patches: folders that are put on PYTHONPATH of one start, so that nothing installed is changed.

Each holds a `sitecustomize.py`, which Python imports in every interpreter that the start has (`-E`, `-I` and `-S`
bypass it). app/core/patches.py lists them with the versions they are proven on.
"""
