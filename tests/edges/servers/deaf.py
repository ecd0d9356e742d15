"""deaf.py [PORT]: ignores every polite signal, as an engine that hangs does; listens on PORT when given."""

import signal
import socket
import sys

signal.alarm(120)  # whatever the test does, this ends
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
if len(sys.argv) > 1:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready")
while True:
    signal.pause()
