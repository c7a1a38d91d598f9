"""service.py PORT: what a Python service allocates: requests in threads, text, JSON, a cache of the last answers."""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CACHED = 1500
cache = {}
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        document = {"path": self.path, "lines": text.splitlines()}
        kept = json.dumps(document).encode()
        with lock:
            cache.pop(self.path, None)
            cache[self.path] = kept
            if len(cache) > CACHED:
                del cache[next(iter(cache))]
        answer = b"%d %d %s\n" % (len(text), len(document["lines"]), hashlib.md5(kept).hexdigest().encode())
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        if not text:
            self.close_connection = True
            self.wfile.flush()  # this thread ends with the server
            threading.Thread(target=self.server.shutdown).start()

    def log_message(self, *words):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


with Server(("127.0.0.1", int(sys.argv[1])), Handler) as server:
    server.serve_forever()
