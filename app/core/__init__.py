"""The pure core: bytes in, verdicts out. No files, sockets, clocks or threads in here (an import contract checks it)."""
