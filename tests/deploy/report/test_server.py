"""`--serve` answers nothing without the token, and is current."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from olmorl.deploy.report.run_reader import RunReader
from olmorl.deploy.report.server import LiveReport, ReportServer
from olmorl.errors import ResourceError
from tests.deploy.report.conftest import Make


@pytest.fixture
def run_dir(make_run: Make) -> Path:
    return make_run(steps=3)


@pytest.fixture
def server(run_dir: Path) -> Iterator[ReportServer]:
    made = ReportServer(LiveReport([RunReader(run_dir, 1 << 30)]))
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join()


def origin(server: ReportServer) -> str:
    parts = urlsplit(server.url)
    assert parts.hostname == "127.0.0.1"
    return f"http://{parts.netloc}"


def visitor(server: ReportServer) -> urllib.request.OpenerDirector:
    """One who has opened the address with the token."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with opener.open(server.url) as answer:
        assert answer.url == f"{origin(server)}/", "the token does not stay in the address"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert b"</html>" in answer.read()
    return opener


@pytest.mark.parametrize("path", ["/", "/manifest", "/blob/x", "/?token=wrong", "/?token=%ff", "/manifest?token="])
def test_without_the_token_there_is_nothing(server: ReportServer, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(origin(server) + path)


def test_a_cookie_that_is_none_is_refused(server: ReportServer) -> None:
    name = f"olmorl-report-{urlsplit(server.url).port}"
    for cookie in (f"{name}=wrong", name, "=;;\x01", f"{name}=\xe9"):
        request = urllib.request.Request(f"{origin(server)}/manifest", headers={"Cookie": cookie})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request)


def test_two_servers_of_one_host_do_not_disturb_each_other(server: ReportServer, run_dir: Path) -> None:
    other = ReportServer(LiveReport([RunReader(run_dir, 1 << 30)]))
    thread = threading.Thread(target=other.run)
    thread.start()
    try:
        opener = visitor(server)
        opener.open(other.url).close()
        for each in (server, other):
            with opener.open(f"{origin(each)}/manifest") as answer:
                assert answer.status == 200
    finally:
        other.stop()
        thread.join()


def test_the_manifest_names_parts_that_can_be_had(server: ReportServer) -> None:
    opener = visitor(server)
    with opener.open(f"{origin(server)}/manifest") as answer:
        (run,) = json.load(answer)["runs"]
    with opener.open(f"{origin(server)}/blob/{run['about']}") as answer:
        assert json.loads(zlib.decompress(answer.read()))["lines"]["step"] == [1, 2, 3]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        opener.open(f"{origin(server)}/blob/../../etc/passwd")


def test_an_unchanged_run_is_told_in_a_word_and_a_grown_one_again(server: ReportServer, run_dir: Path) -> None:
    opener = visitor(server)
    address = f"{origin(server)}/manifest"
    with opener.open(address) as answer:
        tag, first = answer.headers["ETag"], json.load(answer)
    with pytest.raises(urllib.error.HTTPError, match="304"):
        opener.open(urllib.request.Request(address, headers={"If-None-Match": tag}))
    line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**line, "step": 4}) + "\n")
    with opener.open(urllib.request.Request(address, headers={"If-None-Match": tag})) as answer:
        second = json.load(answer)
        assert answer.headers["ETag"] != tag
    for run in (first["runs"][0], second["runs"][0]):
        with opener.open(f"{origin(server)}/blob/{run['about']}") as answer:
            assert answer.status == 200, "a page with the manifest before finds its parts too"


def test_a_run_that_breaks_is_an_answer_too(server: ReportServer, run_dir: Path) -> None:
    opener = visitor(server)
    (run_dir / "metrics.jsonl").write_text("broken\n")
    with pytest.raises(urllib.error.HTTPError, match="503") as error:
        opener.open(f"{origin(server)}/manifest")
    assert b"metrics.jsonl:1: damaged" in error.value.read()


def test_a_port_that_is_taken_is_one_sentence(server: ReportServer) -> None:
    port = urlsplit(server.url).port
    assert port
    with pytest.raises(ResourceError, match=f"--port {port}: .*choose another"):
        ReportServer(LiveReport([]), port)
