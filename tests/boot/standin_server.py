#!/usr/bin/env python3
"""A stand-in for `python -P -m sm86.launch ...`: does the steps in the JSON list STANDIN_STEPS, in order.

["print", text] | ["file", path] | ["sleep", seconds] | ["health", status] | ["exit", code] | ["signal", number]
| ["child", seconds] a child of the same session | ["deaf"] ignores SIGTERM | ["argv"] | ["env", name] | ["hang"]
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time


def serve(port, status):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"object":"list","data":[]}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main():
    port = int(sys.argv[sys.argv.index("--port") + 1])
    for step, *arguments in json.loads(os.environ["STANDIN_STEPS"]):
        if step == "print":
            print(*arguments, flush=True)
        elif step == "file":
            with open(arguments[0], "rb") as file:
                os.write(1, file.read())
        elif step == "sleep":
            time.sleep(arguments[0])
        elif step == "health":
            serve(port, arguments[0])
        elif step == "exit":
            sys.stdout.flush()
            os._exit(arguments[0])
        elif step == "signal":
            os.kill(os.getpid(), arguments[0])
        elif step == "child":
            subprocess.Popen(["/bin/sleep", str(arguments[0])])
        elif step == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif step == "argv":
            print(json.dumps(sys.argv[1:]), flush=True)
        elif step == "env":
            print(os.environ.get(arguments[0]), flush=True)
        elif step == "hang":
            time.sleep(3600)
        else:
            raise SystemExit(f"no such step: {step}")


main()
