"""The seccomp filter: the system calls that a sandboxed process may make. All others are refused.

A Python program can compute, use its open files, and start threads. It cannot start programs (execve) or processes
(fork), open sockets except connected pairs, name the receiver of a message, trace, mount, read the memory of other
processes, change their priorities or limits, or change owners, modes and times of files. It can send signals only to
itself. `for_programs` is a wider filter, for the shell of an episode.
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

_FOR_PROGRAMS = """
execve:59:221 execveat:322:281 fork:57: vfork:58: kill:62:129 tkill:200:130 tgkill:234:131 setpgid:109:154
setsid:112:157 prctl:157:167 arch_prctl:158: capget:125:90 getpriority:140:141 setpriority:141:140
sched_setaffinity:203:122 sched_getscheduler:145:120 sched_getparam:143:121 sched_get_priority_max:146:125
sched_get_priority_min:147:126 fcntl:72:25 creat:85: truncate:76:45 link:86: linkat:265:37 mknod:133: mknodat:259:33
chmod:90: fchmod:91:52 fchmodat:268:53 fchmodat2:452:452 chown:92: fchown:93:55 lchown:94: fchownat:260:54 utime:132:
utimes:235: futimesat:261: utimensat:280:88 statfs:137:43 fstatfs:138:44 fchdir:81:50 flock:73:32 readahead:187:213
fadvise64:221:223 sendfile:40:71 splice:275:76 tee:276:77 copy_file_range:326:285 preadv:295:69 pwritev:296:70
preadv2:327:286 pwritev2:328:287 mincore:27:232 msync:26:227 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10
listxattr:194:11 llistxattr:195:12 flistxattr:196:13 setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 removexattr:197:14
lremovexattr:198:15 fremovexattr:199:16 openat2:437:437 connect:42:203 bind:49:200 listen:50:201 accept:43:202
accept4:288:242 sendto:44:206 sendmsg:46:211 recvmsg:47:212 recvmmsg:299:243 sendmmsg:307:269
socketpair:53:199 inotify_init:253: inotify_init1:294:26 inotify_add_watch:254:27 inotify_rm_watch:255:28
timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87 timer_create:222:107 timer_settime:223:110
timer_gettime:224:108 timer_delete:226:111 timer_getoverrun:225:109 signalfd:282: signalfd4:289:74 eventfd:284:
epoll_pwait2:441:441 pidfd_open:434:434 pidfd_send_signal:424:424 rt_sigqueueinfo:129:138
"""
"""What programs may call besides, where a namespace keeps their processes, files and sockets apart."""

_CONDITIONAL = """
clone:56:220 clone3:435:435 kill:62:129 tgkill:234:131 fcntl:72:25 ioctl:16:29 socketpair:53:199 prlimit64:302:261
sendto:44:206 socket:41:198 mmap:9:222 setsockopt:54:208
"""
_MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""For each machine, the column in the tables and the kernel's number of the architecture."""

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_MAP_SHARED_ANONYMOUS = 0x21
_BUFFER_SIZES = (7, 8, 32, 33)
"""Options of sockets: the sizes of their buffers."""
_FCNTLS = (0, 1, 2, 3, 4, 1030)
"""Duplicate a descriptor, and get and set its flags. Setting the receiver of its signals is refused."""
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Terminal test, terminal size, bytes to read, blocking mode, and close-on-exec on and off."""

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NEW_LISTENER = 8
_LOAD, _AND, _JUMP_EQUAL, _JUMP_BITS, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
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
    asks = _if(_numbers(_CONDITIONAL, column)["clone"], [_step(_RETURN, _ASK)])
    code = [*_start(architecture), *asks, _step(_RETURN, _ALLOW)]
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
    code = [*_start(architecture), *_always(_ALLOWED, column)]
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


def for_programs() -> bytes:
    """The complete filter for a process that starts programs in namespaces of its own.

    They may not make namespaces, nor memory that no process shows as its own: what is shared without a file. To other
    calls the answer is that the kernel has none such: then programs use another.
    """
    column, architecture = _MACHINES[os.uname().machine]
    numbers = _numbers(_CONDITIONAL, column)
    shares = [
        _step(_LOAD, _ARGUMENTS + 8 * 3),
        _step(_AND, _MAP_SHARED_ANONYMOUS),
        _step(_JUMP_EQUAL, _MAP_SHARED_ANONYMOUS, 0, 1),
        _step(_RETURN, _ERROR | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    divides = _argument(0, (_CLONE_NAMESPACES,), _JUMP_BITS, passed=_ERROR | errno.EPERM, other=_ALLOW)
    # A program need not know that its sockets keep the usual buffers.
    enlarges = _argument(2, _BUFFER_SIZES, passed=_ERROR, other=_ALLOW)
    code = [*_start(architecture), *_if(numbers["mmap"], shares), *_if(numbers["clone"], divides)]
    code += _if(numbers["clone3"], [_step(_RETURN, _ERROR | errno.ENOSYS)])
    code += _if(numbers["ioctl"], _argument(1, _IOCTLS))
    code += _if(numbers["prlimit64"], _argument(0, (0,)))
    code += _if(numbers["setsockopt"], enlarges)
    code += _if(numbers["socket"], _argument(0, (_AF_UNIX, _AF_INET, _AF_INET6)))
    code += [*_always(_ALLOWED, column), *_always(_FOR_PROGRAMS, column), _step(_RETURN, _ERROR | errno.ENOSYS)]
    return b"".join(code)


def _start(architecture: int) -> list[bytes]:
    """Kill a process with calls of another architecture, and load the number of the call."""
    return [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]


def _always(table: str, column: int) -> list[bytes]:
    """Allow the calls of a table."""
    allowed = _numbers(table, column).values()
    return [step for number in allowed for step in (_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW))]


def _numbers(table: str, column: int) -> dict[str, int]:
    rows = [entry.split(":") for entry in table.split()]
    return {row[0]: int(row[column]) for row in rows if row[column]}


def _if(number: int, then: list[bytes]) -> list[bytes]:
    """Apply `then` to system call `number`. `then` always returns, so the number stays loaded for later checks."""
    return [_step(_JUMP_EQUAL, number, 0, len(then)), *then]


def _argument(
    index: int,
    values: tuple[int, ...],
    test: int = _JUMP_EQUAL,
    passed: int = _ALLOW,
    other: int = _ERROR | errno.EPERM,
) -> list[bytes]:
    """Return `passed` if the argument of a call passes the test with one of the values. The arguments have 32 bits."""
    tests = [_step(test, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [_step(_LOAD, _ARGUMENTS + 8 * index), *tests, _step(_RETURN, other), _step(_RETURN, passed)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
