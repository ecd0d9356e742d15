"""breed.py chain|own|many: forks on and on, deaf to SIGTERM, for 30 seconds at most.

`chain`: every process forks a successor and ends; `own`: the same, each in a session of its own; `many`: a parent that
forks a child every few milliseconds, which fork again.
"""

import os
import signal
import sys
import time

signal.alarm(120)  # whatever the test does, this ends
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
mode = sys.argv[1]
end = time.monotonic() + 30
print("ready")
sys.stdout.flush()
if mode == "many":
    for _ in range(300):
        if os.fork() == 0:
            for _generation in range(2):
                time.sleep(0.05)
                if os.fork():
                    break
            signal.pause()
        time.sleep(0.01)
    signal.pause()
while time.monotonic() < end:
    if os.fork():
        # The first stays, so that there is something to ask; its line of descendants runs on.
        if os.environ.get("FIRST") is None:
            os.environ["FIRST"] = "1"
            signal.pause()
        os._exit(0)
    os.environ["FIRST"] = "1"
    if mode == "own":
        os.setsid()
    time.sleep(0.002)
