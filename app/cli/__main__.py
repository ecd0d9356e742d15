"""`python -m app.cli`: the same as `bringup`."""

from . import main

main()
