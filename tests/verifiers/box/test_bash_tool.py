"""The tool `bash` runs honest commands as a shell would, and nothing leaves its sandbox: not in space, not in time."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from olmorl.config import Episodes, Verifiers
from olmorl.errors import ConfigError
from olmorl.verifiers.box.bash_tool import _MODULES, DISK_MIB, Bash, Shell, refusal
from olmorl.verifiers.box.inside import shell_server
from olmorl.verifiers.box.inside.shell_server import ShellSetup
from olmorl.verifiers.box.tool import AnswerTime, ReportedError, ToolSettings
from olmorl.verifiers.code.inside.isolation.restrictions import PROCESSES
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments, schemas
from tests.syntax_trees import parse
from tests.verifiers.environments.test_forked_environments import episode, prompt
from tests.waiting import lives, until, with_command

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="the package bubblewrap is not installed")
MEMORY_MIB = 256
ROW = {"files": {"notes/a.txt": "alpha\n", "run.sh": "#!/bin/bash\necho ran $1\n", "é.txt": "é"}}
KEPT = "\n[the current folder and variables are those before this command]"


class EachCall(AnswerTime):
    """Each call has the whole time."""

    def limit_s(self, own_s: float) -> float:
        return 2.0


SETTINGS = ToolSettings(Verifiers(memory_mib=MEMORY_MIB), EachCall(60.0))
IDLE = 3
"""Processes of a sandbox without a command: two of bubblewrap, and the server."""


@pytest.fixture(scope="module")
def made() -> Bash:
    return Bash("", SETTINGS)


@pytest.fixture
def bash(made: Bash) -> Iterator[Bash]:
    """One episode. After it nothing of it is left."""
    before = set(psutil.Process().children(recursive=True))
    made.start(ROW)
    try:
        yield made
        assert made.bash("echo alive") == "alive\n[exit code 0]"
    finally:
        made.close()
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter and change."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@needs_bubblewrap
def test_a_file_is_there_in_the_next_call(bash: Bash) -> None:
    assert bash.bash("cat notes/a.txt && echo beta > notes/b.txt") == "alpha\n[exit code 0]"
    assert bash.bash("cat notes/b.txt; ./run.sh 7") == "beta\nran 7\n[exit code 0]"
    assert bash.files() == {**ROW["files"], "notes/b.txt": "beta\n"}


@needs_bubblewrap
def test_an_episode_has_nothing_of_the_one_before(bash: Bash) -> None:
    bash.bash("echo secret > seen; echo secret > /tmp/seen; export SEEN=secret; cd notes")
    bash.start({})
    assert bash.bash("ls -A . /tmp; echo $PWD $SEEN") == ".:\n\n/tmp:\n/tree\n[exit code 0]"
    assert bash.files() == {}


@needs_bubblewrap
@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("printf 'b\\na\\n' | sort | tr a-z A-Z", "A\nB\n[exit code 0]"),
        ("yes | head -n 1", "y\n[exit code 0]"),
        ("printf x", "x\n[exit code 0]"),
        ("true", "[exit code 0]"),
        ("", "[exit code 0]"),
        ("echo out; echo err >&2; exit 3", "out\nerr\n[exit code 3]"),
        ("false", "[exit code 1]"),
        ("no_such_program", "bash: line 1: no_such_program: command not found\n[exit code 127]"),
        ("echo '", "bash: eval: line 1: unexpected EOF while looking for matching `''\n[exit code 2]"),
        ("kill -9 $$", "[exit code 137]" + KEPT),
        ("exec echo replaced", "replaced\n[exit code 0]" + KEPT),
        ("read line; echo \"<$line>\"", "<>\n[exit code 0]"),
        ("cat <(echo a) <(echo b)", "a\nb\n[exit code 0]"),
        ("cat <<END\n$((6 * 7))\nEND", "42\n[exit code 0]"),
        ("set -e; false; echo not reached", "[exit code 1]"),
        ("printf '\\xff'", "\N{REPLACEMENT CHARACTER}\n[exit code 0]"),
        ("timeout 0.1 sleep 5", "[exit code 124]"),
        ("sleep 5 & kill $!; wait $!; echo $?", "143\n[exit code 0]"),
        ("mkdir d; cp run.sh d; mv d/run.sh e; ln e f; ln -s e g; chmod 600 g; touch -d 2020-01-01 e; cat g | wc -l",
         "2\n[exit code 0]"),
        ("sed -i s/alpha/gamma/ notes/a.txt; grep -r gamma .", "./notes/a.txt:gamma\n[exit code 0]"),
        ("tar czf t.tgz notes && rm -r notes && tar xzf t.tgz && cat notes/a.txt", "alpha\n[exit code 0]"),
        ("ps -eo comm= | sort -u | head -n 1", "bash\n[exit code 0]"),
    ],
)  # fmt: skip
def test_commands_end_as_in_a_shell(bash: Bash, command: str, result: str) -> None:
    assert bash.bash(command) == result


@needs_bubblewrap
def test_a_script_of_python_runs_with_its_processes_and_sockets(bash: Bash) -> None:
    code = (
        "import multiprocessing, socket, sqlite3, subprocess, tempfile, threading\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))\n"
        "    server = socket.create_server(('127.0.0.1', 0))\n"
        "    threading.Thread(target=lambda: server.accept()[0].sendall(b'hello')).start()\n"
        "    print(socket.create_connection(server.getsockname()).recv(5))\n"
        "    print(subprocess.run(['cat'], input=b'piped', capture_output=True).stdout)\n"
        "    print(sqlite3.connect('t.db').execute('create table t(x)').rowcount)\n"
        "    print(tempfile.mkdtemp()[:5], input())\n"
    )
    bash.bash(f"cat > s.py <<'END'\n{code}END")
    result = bash.bash("echo typed | python3 s.py")
    assert result == "[1, 2]\nb'hello'\nb'piped'\n-1\n/tmp/ typed\n[exit code 0]"


@needs_bubblewrap
def test_the_folder_and_exported_variables_are_kept_and_nothing_else(bash: Bash) -> None:
    bash.bash("cd notes; export A='1 2\n3' B=\U0001f600; C=4; f() { echo f; }; set -u; umask 077")
    assert bash.bash('pwd; echo "$A$B"; echo "<${C-}>"; f; echo $D') == (
        "/tree/notes\n1 2\n3\U0001f600\n<>\nbash: line 1: f: command not found\n\n[exit code 0]"
    )
    bash.bash("cd ..; rm -r notes; mkdir gone; cd gone; rmdir ../gone")
    assert bash.bash("pwd") == "/tree\n[exit code 0]"
    assert bash.bash("export BIG=$(head -c 70000 /dev/urandom | base64 -w 0)") == "[exit code 0]" + KEPT


@needs_bubblewrap
def test_a_command_that_runs_too_long_is_ended_and_the_policy_reads_it(bash: Bash) -> None:
    began = time.monotonic()
    result = bash.bash("echo begun; cd /tmp; sleep 600")
    assert result == "begun\n[ended, because it ran longer than 2 s]" + KEPT and isinstance(result, ReportedError)
    assert time.monotonic() - began < 6
    assert bash.bash("pwd") == "/tree\n[exit code 0]"


@needs_bubblewrap
def test_long_output_is_cut_in_the_middle(bash: Bash) -> None:
    result = bash.bash("seq 1 1000000")
    assert result.startswith("1\n2\n3\n") and result.endswith("\n1000000\n[exit code 0]")
    assert "characters left out]" in result and len(result) < 10_100
    flood = bash.bash("yes")
    assert flood.endswith("[ended, because it ran longer than 2 s]" + KEPT) and len(flood) < 10_200


@needs_bubblewrap
def test_a_command_that_no_kernel_takes_is_text_for_the_policy(bash: Bash) -> None:
    for command, why in (("echo \0", "NUL"), ("echo " + "x" * 200_000, "at most 100,000 bytes")):
        with pytest.raises(ValueError, match=why):
            bash.bash(command)
    with pytest.raises(TypeError):
        bash.bash(["echo"])  # type: ignore[arg-type]  # schemas do not bind the policy
    assert bash.bash("echo " + "x" * 99_000 + " | wc -c") == "99001\n[exit code 0]"
    assert bash.bash("printf '\ud800' | wc -c") == "3\n[exit code 0]"


@needs_bubblewrap
@pytest.mark.parametrize(
    "command",
    [
        "cat /etc/passwd",
        "cat /etc/shadow",
        "ls /home || ls /var",
        "cat {outside}",
        "ln -s {outside} link; cat link",
        "echo x > {outside}",
        "touch /usr/escaped",
        "touch /etc/escaped",
        "touch /escaped",
        "echo x > /python/python3",
        "echo 1 > /proc/sys/kernel/panic || echo b > /proc/sysrq-trigger",
        "mount -t tmpfs none /usr",
        "mount -o remount,rw /",
        "/usr/sbin/chroot / /usr/bin/true",
        "unshare -r true",
        "unshare -p true",
        "nsenter -t 1 -a true",
        "su -c true",
        "mknod disk b 254 0 && cat disk",
        "cp /usr/bin/id . && chmod u+s id && ./id -u | grep -x 0",
        "id -u | grep -x 0 || id -G | grep -x 0",
        "exec 3<>/dev/tcp/127.0.0.1/{port}",
        "exec 3<>/dev/tcp/1.1.1.1/53",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"\\0olmorl_{port}\")'",
        "python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)'",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)'",
        "python3 -c 'import os; os.memfd_create(\"x\")'",
        "python3 -c 'import mmap; mmap.mmap(-1, 1 << 20)'",
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).shmget(0, 4096, 0o1600) < 0)'",
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(425, 8, 0) < 0)'",
        "sleep 9 & python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0))' $!",
        "cat /proc/1/environ || cat /proc/1/mem",
        "ls /proc/1/fd",
        "kill -9 {pid}",
        "ls -d /proc/{pid}",
        "ls /proc | grep -E '^[0-9]{{3,}}$'",
        "ulimit -u 4000",
        "ulimit -v unlimited",
        "env | grep SECRET",
        "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep SECRET",
        "ls /proc/self/fd | grep -vxE '0|1|2|3|200'",
    ],
)
def test_an_attack_fails(bash: Bash, command: str, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command would end with the code 0."""
    monkeypatch.setenv("SECRET", "of the actor")
    bash.start(ROW)  # with the variable
    outside = open_folder / "outside"
    outside.write_text("untouched")
    outside.chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port = server.getsockname()[1]
        abstract.bind(f"\0olmorl_{port}")
        abstract.listen()
        result = bash.bash(command.format(outside=outside, port=port, pid=os.getpid()))
    assert "[exit code " in result and "[exit code 0]" not in result, result
    assert "untouched" not in result and outside.read_text() == "untouched"


@needs_bubblewrap
@pytest.mark.parametrize(
    "command",
    [
        ":(){ :|:& };:; sleep 600",
        "kill -9 -1; kill -9 1",
        "setsid nohup sleep 600 > /dev/null 2>&1 & disown",
        "(setsid sleep 600 &) & trap '' TERM; nohup setsid bash -c 'trap \"\" TERM INT HUP; sleep 600' &",
        "python3 -c 'import os\nwhile True:\n  os.fork()'",
        "yes >&200",
        "exec 200>&- 1>&- 2>&-; sleep 1",
        "printf 'PWD=/proc\\0LD_PRELOAD=/tree/run.sh\\0PATH=/nowhere\\0' >&200; kill -9 $$",
        "mkdir -p $(printf 'd/%.0s' {1..400}); for n in {1..20}; do cd $(printf 'd/%.0s' {1..400}); "
        "mkdir -p $(printf 'd/%.0s' {1..400}); done",
        "mkfifo pipe; chmod 000 notes; ln -s /proc/self/environ env; ln -s .. up; ln -s up/up loop",
    ],
)
def test_whatever_a_command_does_ends_with_it(bash: Bash, command: str) -> None:
    bash.bash(command)
    until(lambda: len(psutil.Process().children(recursive=True)) == IDLE)
    assert "/proc" not in "".join(bash.files())
    bash.bash("unset LD_PRELOAD; export PATH=/usr/bin")
    bash.bash("cd /tree")


@needs_bubblewrap
def test_processes_are_bounded(bash: Bash) -> None:
    count = "import os, signal\nn = 0\ntry:\n  while n < 500:\n    if os.fork() == 0: signal.pause()\n    n += 1\n"
    result = bash.bash(f"python3 -c '{count}except OSError: print(n)'")
    assert 0 < int(result.split("\n")[0]) < PROCESSES


@needs_bubblewrap
@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm"])
def test_the_disk_is_bounded(bash: Bash, folder: str) -> None:
    assert "[exit code 1]" in bash.bash(
        f"cd {folder}; for n in 1 2 3; do head -c {DISK_MIB >> 1}M /dev/urandom > $n; done"
    )
    size = bash.bash(f"cd {folder}; du -sm . | cut -f 1; rm 1 2 3")
    assert DISK_MIB >> 1 <= int(size.split("\n")[0]) <= DISK_MIB + 1
    many = 'import os\nfor n in range(100_000): os.close(os.open(f"f{n}", os.O_CREAT))'
    assert "No space left" in bash.bash(f"cd {folder}; python3 -c '{many}'")
    bash.bash("find . /tmp -name 'f*' -type f -delete")
    assert "File size limit exceeded" in bash.bash(f"cd {folder}; truncate -s 1T hole")


@needs_bubblewrap
def test_the_memory_of_all_processes_together_is_bounded(bash: Bash) -> None:
    assert "MemoryError" in bash.bash(f"python3 -c 'bytearray({MEMORY_MIB} << 20)'")
    each = f'import time; held = b"x" * ({MEMORY_MIB >> 1} << 20); time.sleep(600)'
    result = bash.bash(f"for n in 1 2 3 4; do python3 -c '{each}' & done; wait")
    assert result == f"[ended, because its processes used more than {MEMORY_MIB} MiB of memory]" + KEPT


@needs_bubblewrap
def test_memory_that_the_kernel_holds_for_no_process_is_bounded(bash: Bash) -> None:
    code = (
        "import os, socket, signal\nheld = []\nfor n in range(4): os.fork()\n"
        "try:\n  while True:\n    for end in socket.socketpair():\n      held.append(end)\n"
        "      end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)\n"
        "      assert end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 1 << 20\n"
        "except OSError: signal.pause()"
    )
    result = bash.bash(f"python3 -c '{code}'")
    assert result == f"[ended, because its processes used more than {MEMORY_MIB} MiB of memory]" + KEPT


@needs_bubblewrap
def test_the_final_state_is_text_of_the_tree_and_nothing_behind_links_and_holes(bash: Bash, tmp_path: Path) -> None:
    bash.bash(
        f"ln -s /usr usr; ln -s {__file__} test; ln -s notes/a.txt inside; mkfifo pipe; printf '\\xff' > bytes; "
        "touch $'bad\\xff' $'new\\nline'; rm -r notes run.sh; for n in {1..40}; do truncate -s 15M hole$n; done"
    )
    found = bash.files()
    assert {"é.txt", "new\nline"} <= found.keys() and found["é.txt"] == "é"
    assert {name for name in found if not name.startswith("hole")} == {"é.txt", "new\nline"}
    assert sum(map(len, found.values())) <= 16 << 20


@needs_bubblewrap
def test_paths_of_a_row_that_lead_out_of_the_tree_start_nothing(made: Bash) -> None:
    with pytest.raises(ValueError, match="no relative path inside of the tree"):
        made.start({"files": {"../../etc/passwd": "x"}})
    assert psutil.Process().children() == []


@needs_bubblewrap
@pytest.mark.parametrize("files", [{"a": "x", "a/b": "y"}, {"a": "x" * (DISK_MIB + 1 << 20)}, {"a" * 300: "x"}])
def test_files_that_do_not_fit_into_the_tree_are_a_fault_of_the_row(made: Bash, files: dict[str, str]) -> None:
    try:
        with pytest.raises(ValueError, match="its column files: a"):
            made.start({"files": files})
    finally:
        made.close()


@needs_bubblewrap
def test_a_shell_that_cannot_be_started_is_an_outage_with_its_cause() -> None:
    shell = Shell(ShellSetup(MEMORY_MIB, DISK_MIB))
    try:
        with pytest.raises(ConnectionError, match=r"the sandbox of bash failed: OSError: .* Argument list too long"):
            shell.ask({"command": "x" * 200_000, "environment": {}, "timeout_s": 2.0}, 20.0)
    finally:
        shell.close()


@needs_bubblewrap
def test_a_sandbox_that_is_lost_is_an_outage_and_the_next_episode_has_another(made: Bash) -> None:
    made.start(ROW)
    for child in psutil.Process().children(recursive=True)[::-1]:
        child.kill()
    with pytest.raises(ConnectionError, match="the sandbox of bash"):
        made.bash("echo x")
    made.start(ROW)
    assert made.bash("echo x") == "x\n[exit code 0]"
    made.close()


@needs_bubblewrap
async def test_an_episode_uses_it_and_a_reward_function_reads_the_final_state(tmp_path: Path) -> None:
    reward = (
        "def reward(environments, **_):\n    return [float(environments[0].bash.files() == {'a': 'x', 'b': 'y\\n'})]\n"
    )
    (tmp_path / "rewards.py").write_text(reward)
    settings = Episodes(environment="box:bash", tool_parser="hermes", timeout_s=20.0)
    assert [tool["function"]["name"] for tool in schemas(settings)] == ["bash"]
    environments = ForkedEnvironments(settings, Verifiers(functions=[f"{tmp_path}/rewards.py:reward"]))
    await environments.start()
    try:
        world = environments.open()
        await world.reset(prompt(files={"a": "x"}), 0)
        function = {"name": "bash", "arguments": {"command": "cat a; echo y > b"}}
        step = await world.step({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]})
        assert [message["content"] for message in step.messages] == ["x\n[exit code 0]"]
        (verdict,) = (await world.reward(episode())).values()
        assert verdict.reward == 1.0
        await world.close()
    finally:
        await environments.stop()


def sleeping(pid: int) -> list[psutil.Process]:
    found = with_command(psutil.Process(pid).children(recursive=True), "sleep 61")
    return [process for process in found if process.name() == "sleep"]


@needs_bubblewrap
def test_all_processes_end_with_a_worker_that_is_killed() -> None:
    code = (
        "from tests.verifiers.box.test_bash_tool import *\nbash = Bash('', SETTINGS._replace(time=AnswerTime(900)))\n"
        "bash.start({})\n"
        "print('started', flush=True)\nbash.bash('setsid sleep 612 & sleep 613')"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout is not None and worker.stdout.readline() == b"started\n"
    until(lambda: len(sleeping(worker.pid)) == 2)
    running = psutil.Process(worker.pid).children(recursive=True)
    if os.getuid() == 0:
        assert all(0 not in process.uids() + process.gids() for process in running)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    until(lambda: not any(map(lives, running)))


@needs_bubblewrap
def test_a_machine_where_commands_run_gives_no_reason() -> None:
    assert refusal(Verifiers()) == refusal(Verifiers(code_tier="bubblewrap")) == ""


@pytest.mark.parametrize("tier", ["landlock", "unsafe"])
async def test_a_weaker_sandbox_is_refused_at_the_start(tier: Any) -> None:
    environments = ForkedEnvironments(Episodes(environment="box:bash"), Verifiers(code_tier=tier))
    with pytest.raises(ConfigError, match=f'only with verifiers.code_tier = "bubblewrap", and not with "{tier}"'):
        await environments.start()


async def test_without_bubblewrap_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    environments = ForkedEnvironments(Episodes(environment="box:bash"), Verifiers())
    with pytest.raises(ConfigError, match=r"install the package bubblewrap and allow .* Here: bwrap is not on PATH"):
        await environments.start()


def test_where_namespaces_are_refused_it_says_what_bubblewrap_said(
    monkeypatch: pytest.MonkeyPatch, open_folder: Path
) -> None:
    (open_folder / "bwrap").write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    (open_folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    assert refusal(Verifiers()).endswith("Here: bwrap: setting up uid map: Permission denied")


def test_the_server_imports_only_python_and_what_is_sent_with_it() -> None:
    inside = "olmorl.verifiers.code.inside"
    sent = {inside + ".isolation", *(f"{inside}.{name}" for name in _MODULES)}
    for node in ast.walk(parse(Path(shell_server.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.module in sent or (node.module or "").split(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= sys.stdlib_module_names
