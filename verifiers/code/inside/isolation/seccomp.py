"""The seccomp filter: the system calls that a sandboxed process may make. All others are refused.

A Python program can compute, use its open files, and start threads. It cannot start programs (execve) or processes
(fork), open sockets except connected pairs, name the receiver of a message, trace, mount, read the memory of other
processes, change their priorities or limits, or change owners, modes and times of files. It can send signals only to
itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

from olmorl.verifiers.code.inside.isolation.syscalls import call

_ALLOWED = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 lseek:8:62 close:3:57 close_range:436:436
open:2: openat:257:56 stat:4: fstat:5:80 lstat:6: newfstatat:262:79 statx:332:291 access:21: faccessat:269:48
faccessat2:439:439 readlink:89: readlinkat:267:78 getcwd:79:17 chdir:80:49 getdents:78: getdents64:217:61
ftruncate:77:46 fallocate:285:47 fsync:74:82 fdatasync:75:83 dup:32:23 dup2:33: dup3:292:24 unlink:87: unlinkat:263:35
mkdir:83: mkdirat:258:34 rmdir:84: rename:82: renameat:264:38 renameat2:316:276 symlink:88: symlinkat:266:36
mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 brk:12:214
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigsuspend:130:133 sigaltstack:131:132 pause:34: alarm:37: getitimer:36:102 setitimer:38:103
pipe:22: pipe2:293:59 poll:7: ppoll:271:73 select:23: pselect6:270:72 epoll_create:213: epoll_create1:291:20
epoll_ctl:233:21 epoll_wait:232: epoll_pwait:281:22 eventfd2:290:19 recvfrom:45:207 shutdown:48:210
getsockopt:55:209 getsockname:51:204 getpeername:52:205
futex:202:98 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293 set_tid_address:218:96 membarrier:324:283
sched_yield:24:124 sched_getaffinity:204:123 getcpu:309:168
getpid:39:172 getppid:110:173 gettid:186:178 getpgid:121:155 getpgrp:111: getsid:124:156 getuid:102:174 geteuid:107:175
getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 uname:63:160 sysinfo:99:179
getrusage:98:165 getrlimit:97:163 setrlimit:160:164 umask:95:166 times:100:153 time:201: gettimeofday:96:169
clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101 getrandom:318:278
exit:60:93 exit_group:231:94 restart_syscall:219:128 wait4:61:260 waitid:247:95
"""
"""Name, number on x86_64, number on aarch64. The last is empty for calls that aarch64 lacks."""

_CONDITIONAL = """
clone:56:220 clone3:435:435 kill:62:129 tgkill:234:131 fcntl:72:25 ioctl:16:29 socketpair:53:199 prlimit64:302:261
sendto:44:206
"""
_MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""For each machine, the column in the tables and the kernel's number of the architecture."""

_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_FCNTLS = (0, 1, 2, 3, 4, 1030)
"""Duplicate a descriptor, and get and set its flags. Setting the receiver of its signals is refused."""
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Terminal test, terminal size, bytes to read, blocking mode, and close-on-exec on and off."""

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NEW_LISTENER = 8
_LOAD, _JUMP_EQUAL, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERROR, _ASK = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def supported() -> bool:
    """Whether the tables contain the system call numbers of this machine."""
    return os.uname().machine in _MACHINES


def restrict(program: bytes) -> None:
    """Apply a filter from `for_process` to this process and its later threads, permanently."""

    call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(program) // 8, program)), 0, 0)


def ask_for_threads() -> int:
    """Make each new thread of this process wait for an answer. Returns the descriptor that `Threads` answers on."""
    machine = os.uname().machine
    column, architecture = _MACHINES[machine]
    code = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        *_if(_numbers(_CONDITIONAL, column)["clone"], [_step(_RETURN, _ASK)]),
        _step(_RETURN, _ALLOW),
    ]
    asking = _Program(len(code), b"".join(code))
    return call("syscall", _SECCOMP[machine], 1, _NEW_LISTENER, ctypes.byref(asking))


class Threads:
    """Lets a process have a limited number of threads. The limit holds within twice the number."""

    _RECEIVE, _SEND = 0xC0502100, 0xC0182101
    _ASKED, _ANSWER = struct.Struct("=QII64x"), struct.Struct("=QqiI")

    def __init__(self, listener: int, most: int) -> None:
        self._listener = listener
        self._most = most

    def fileno(self) -> int:
        return self._listener

    def answer(self) -> None:
        """Answer one thread that wants to start another."""
        asked = bytearray(self._ASKED.size)
        try:
            fcntl.ioctl(self._listener, self._RECEIVE, asked)
            number, thread, _ = self._ASKED.unpack(asked)
            # The folder is not read, and it has a link for each thread.
            allowed = os.stat(f"/proc/{thread}/task").st_nlink - 2 < self._most  # noqa: PTH116
            answer = self._ANSWER.pack(number, 0, 0 if allowed else -errno.EAGAIN, int(allowed))
            fcntl.ioctl(self._listener, self._SEND, answer)
        except OSError:  # the thread has ended meanwhile
            return

    def close(self) -> None:
        os.close(self._listener)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def compiled() -> bytes:
    """The filter without the conditions on signals. `for_process` adds those, because they need the process id."""
    column, architecture = _MACHINES[os.uname().machine]
    numbers = _numbers(_CONDITIONAL, column)
    code = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    for number in _numbers(_ALLOWED, column).values():
        code += [_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW)]
    code += _if(numbers["clone"], _argument(0, (_CLONE_THREAD,), _JUMP_BITS))
    # With ENOSYS the C library falls back to clone, whose flags the filter can read.
    code += _if(numbers["clone3"], [_step(_RETURN, _ERROR | errno.ENOSYS)])
    code += _if(numbers["fcntl"], _argument(1, _FCNTLS))
    code += _if(numbers["ioctl"], _argument(1, _IOCTLS))
    code += _if(numbers["socketpair"], _argument(0, (_AF_UNIX,)))
    # An address of length 0: the other end of the pair receives, and no socket of the host.
    code += _if(numbers["sendto"], _argument(5, (0,)))
    code += _if(numbers["prlimit64"], _argument(0, (0,)))
    return b"".join(code)


def for_process(program: bytes, pid: int) -> bytes:
    """The complete filter for process `pid`, which may send signals only to itself."""
    numbers = _numbers(_CONDITIONAL, _MACHINES[os.uname().machine][0])
    own = _argument(0, (pid,))
    tail = [*_if(numbers["kill"], own), *_if(numbers["tgkill"], own), _step(_RETURN, _ERROR | errno.EPERM)]
    return program + b"".join(tail)


def _numbers(table: str, column: int) -> dict[str, int]:
    rows = [entry.split(":") for entry in table.split()]
    return {row[0]: int(row[column]) for row in rows if row[column]}


def _if(number: int, then: list[bytes]) -> list[bytes]:
    """Apply `then` to system call `number`. `then` always returns, so the number stays loaded for later checks."""
    return [_step(_JUMP_EQUAL, number, 0, len(then)), *then]


def _argument(index: int, values: tuple[int, ...], test: int = _JUMP_EQUAL) -> list[bytes]:
    """Allow the call if its argument passes the test with one of the values. The arguments have 32 bits."""
    tests = [_step(test, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [
        _step(_LOAD, _ARGUMENTS + 8 * index),
        *tests,
        _step(_RETURN, _ERROR | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
