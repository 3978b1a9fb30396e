"""What is said of an agent that does not let us in."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dfx_agent.commands.ps.agent_client import AskedAgent, NoAnswerError


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("token", "wanted"), [(None, "its token"), ("abc", "another token than this one")]
)
def test_a_token_that_was_given_is_not_asked_for_again(url, token, wanted):
    with pytest.raises(NoAnswerError) as error:
        AskedAgent(url, token).snapshot()
    assert str(error.value) == f"{url} wants {wanted}: give --token-file FILE"
