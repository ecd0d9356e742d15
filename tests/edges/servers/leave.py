"""leave.py stay|die marked|bare [PORT]: starts a grandchild in a session of its own whose parent is dead, deaf to
SIGTERM.

`bare` takes the environment from it, so that nothing but its ancestry leads to it; `die` ends the server itself after
that.
"""

import os
import signal
import sys
import time
from pathlib import Path

mode, dress, port = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0

GRANDCHILD = """
import os, signal, socket, sys
signal.alarm(120)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
port = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", port)) if port else None
print("grandchild", os.getpid(), flush=True)
while True: signal.pause()
"""

signal.alarm(120)  # whatever the test does, this ends
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0)
        env = {} if dress == "bare" else dict(os.environ)
        os.execve(sys.executable, [sys.executable, "-S", "-c", GRANDCHILD, str(port)], env)
    os._exit(0)
os.waitpid(middle, 0)
print("ready")
if mode == "die":
    # Only once the grandchild is there: its parent, and now its grandparent, are gone.
    while "grandchild" not in Path("/proc/self/fd/1").read_text():
        time.sleep(0.01)
    os._exit(0)
while True:
    signal.pause()
