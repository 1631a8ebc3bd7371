import subprocess
import sys

SCRIPT = """
import socket, sys, tempfile, os
from fcilbench.errors import PrerequisiteError
from fcilbench.worker.main import refuse_network
refuse_network(); refuse_network()
def refused(call):
    try:
        call()
    except PrerequisiteError as error:
        return "refused" in str(error)
    except OSError:
        return False
    return False
tcp = socket.socket(); udp = socket.socket(type=socket.SOCK_DGRAM)
for host in ("192.0.2.1", b"192.0.2.1"):
    assert refused(lambda: tcp.connect((host, 80))), host
assert refused(lambda: tcp.connect_ex(("192.0.2.1", 80)))
assert refused(lambda: udp.sendto(b"x", ("192.0.2.1", 80)))
assert refused(lambda: socket.getaddrinfo("example.invalid", 80))
assert refused(lambda: socket.gethostbyname("example.invalid"))
assert refused(lambda: socket.create_connection(("192.0.2.1", 80), timeout=1))
import urllib.request
try:
    urllib.request.urlopen("http://example.invalid/")
except Exception as error:
    assert "offline" in repr(error), error
server = socket.create_server(("127.0.0.1", 0)); port = server.getsockname()[1]
socket.create_connection(("localhost", port)).close()
socket.create_connection(("127.0.0.1", port)).close()
path = os.path.join(tempfile.mkdtemp(), "s"); unix = socket.socket(socket.AF_UNIX); unix.bind(path); unix.listen()
socket.socket(socket.AF_UNIX).connect(path)
from fcilbench.worker.main import _here
assert [_here(host) for host in ("::1", "127.3.2.1", "fe80::1%eth0", "")] == [True, True, False, True]
print("done")
"""


def test_only_this_host_can_be_reached():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "done\n", done.stderr
