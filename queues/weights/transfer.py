"""Versions go from one actor host to the others by vLLM's weight transfer; the weight store is the way around it.

    sender (Ray actor on one actor host)     fetches a version from the store, and broadcasts it to the group
    receiver (Ray actor on each other host)  writes the chunks into the cache of its host, and compares their hashes
    HostTransfer (in each actor's store)     waits for the host's copy, a limited time, before the store is asked

The learner takes no part. A broadcast that hangs cannot be interrupted: its processes end, and new ones replace them.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from olmorl.codec import decode, encode
from olmorl.errors import WeightError
from olmorl.messages import Version, WeightsReady
from olmorl.network import way_to
from olmorl.ports import StagedWeights
from olmorl.queues.weights.host_cache import TakeChunk
from olmorl.queues.weights.ray_actors import find, first_line, make_here
from olmorl.queues.weights.store import StagedWeightStore

if TYPE_CHECKING:
    from olmorl.queues.weights.vllm_transfer import SentChunks

SETTLE_S = 2.0
"""From a host that joins until the group is formed: others may join too."""
FORM_S = 120.0
"""To form the group. It is also the time to import vLLM."""
ANSWER_S = 10.0
"""For a receiver that does nothing to answer."""
SLOWEST_BYTES_PER_S = 0.5e9
"""From the store to the sender, and then from the sender to the others."""
OWN_HOST = "its sender is on this host"
OpenStore = Callable[[], StagedWeightStore]
"""Opens the run's store in another process of the same host. It travels there."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TransferDevice:
    """The device that vLLM's transfer works on. A test has another one, and its own group."""

    name: str = "cuda:0"
    """The first that the process sees, which is torch's current device."""
    stall_s: float = 10.0
    """Longest time between two chunks of a broadcast."""

    def prepare(self) -> None:
        """Prepare a process for the device, before it imports vLLM."""


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """End this process, with the stack of each thread in its log, if the block takes longer."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Receiver:
    """A version that it brings to its host is whole and compared with its hashes, or not there. A Ray actor."""

    def __init__(self, host: str, open_store: OpenStore, device: TransferDevice, gpus: str | None) -> None:
        self._host = host
        self._store = open_store()
        self._stall_s = device.stall_s
        _prepare_environment(gpus)
        device.prepare()
        from olmorl.queues.weights.vllm_transfer import ReceivedChunks, open_receiver

        self._chunks = ReceivedChunks(self._moved)
        self._engine = open_receiver(device.name, self._chunks)
        self._expected: WeightsReady | None = None

    def join(self, sender: Any) -> None:
        """Tell the sender that this host can be in its group."""
        sender.join.remote(self._host, ray.get_runtime_context().current_actor)

    def enter(self, group: dict[str, Any]) -> None:
        """Leave the group before, and enter the one that vLLM describes."""
        with _within(FORM_S):
            self._engine.shutdown()
            self._engine.init_transfer_engine(self._engine.parse_init_info(group))

    def expect(self, manifest: bytes | None) -> None:
        """Note the version that comes next; None: a broadcast of nothing."""
        self._expected = None if manifest is None else decode(manifest, WeightsReady)

    def receive(self, update: dict[str, Any]) -> str:
        """Take part in a broadcast to its end. Returns why the version is not here now; empty when it is."""
        begun = False

        def transfer(take: TakeChunk | None) -> None:
            nonlocal begun
            begun, self._chunks.take = True, take
            with _within(self._stall_s):
                self._engine.update_weights(update)

        problem = ""
        try:
            if self._expected is not None:
                self._store.receive(self._expected, transfer)
        except WeightError as error:
            problem = str(error)
        if not begun:
            transfer(None)
        return problem

    def _moved(self) -> None:
        faulthandler.dump_traceback_later(self._stall_s, exit=True)


class _Control:
    """What vLLM's sender asks of the receivers. Implements vLLM's `VLLMWeightSyncClient`."""

    def __init__(self, receivers: Sequence[Any]) -> None:
        self._receivers = receivers
        self.problems: Sequence[str] = ()
        """Of each receiver, after a broadcast."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        # Each is an engine of its own for vLLM, and the sender is number 0.
        infos = [init_info | {"rank_offset": number} for number, _ in enumerate(self._receivers, 1)]
        ray.get([one.enter.remote(info) for one, info in zip(self._receivers, infos, strict=True)])

    def start_weight_update(self) -> None:
        """Nothing: no model is touched."""

    def update_weights(self, update_info: Any) -> None:
        self.problems = ray.get([one.receive.remote(update_info) for one in self._receivers])

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Nothing: no model was touched."""


class _Group:
    """vLLM's group of the sender and these receivers. `hosts` names the receivers."""

    def __init__(self, hosts: dict[str, Any], address: str, source: SentChunks, stall_s: float) -> None:
        from olmorl.queues.weights.vllm_transfer import open_sender

        self.hosts = hosts
        self._source = source
        self._stall_s = stall_s
        self._control = _Control(list(hosts.values()))
        with _within(FORM_S):
            self._engine = open_sender(address, _free_port(address), len(hosts), self._control, source)
            self.send(None)  # of nothing: the first broadcast is slow

    def send(self, staged: StagedWeights | None) -> dict[str, str]:
        """Broadcast a version. Returns for each host why it does not have it.

        An error of vLLM, torch or Ray means that the group is of no more use.
        """
        manifest = None if staged is None else encode(staged.manifest)
        ray.get([one.expect.remote(manifest) for one in self.hosts.values()], timeout=ANSWER_S)
        self._source.staged = staged
        with _within(self._stall_s if staged is not None else FORM_S):
            self._engine.send_weights()
        return dict(zip(self.hosts, self._control.problems, strict=True))

    def close(self) -> None:
        self._engine.shutdown()


class Sender:
    """Brings each version to all hosts of its group in one broadcast. A Ray actor, on one of the actor hosts.

    Hosts join at any time. A group is formed in the background. While there is none, all hosts use the store.
    """

    def __init__(self, host: str, open_store: OpenStore, device: TransferDevice, gpus: str | None) -> None:
        self._host = host
        self._store = open_store()
        self._device = device
        self._gpus = gpus
        self._joined: dict[str, Any] = {}
        self._group: _Group | None = None
        self._why_none = "the group is being formed"
        self._turn = asyncio.Lock()
        self._forming: asyncio.Task[None] | None = None
        self._sent: Version | None = None
        self._problems: dict[str, str] = {}
        """Of the hosts of the group, for the version sent last."""
        self._source: SentChunks | None = None

    async def join(self, host: str, receiver: Any) -> None:
        """Take a host into the next group."""
        self._joined[host] = receiver
        self._form_later()

    async def bring(self, version: Version, host: str) -> str | None:
        """Wait until the version is on the host. Returns why it is not, or None for a host that has not joined."""
        if host == self._host:
            return OWN_HOST  # its actors need not wait for the broadcast
        if host not in self._joined:
            return None
        if self._group is None:
            self._form_later()
            return self._why_none
        async with self._turn:
            if version != self._sent:
                self._problems = await self._send(version)
                self._sent = version
        return self._problems.get(host, "the group was formed without this host")

    async def _send(self, version: Version) -> dict[str, str]:
        group = self._group
        if group is None:
            return {}
        try:
            return await asyncio.to_thread(group.send, await asyncio.to_thread(self._store.fetch, version))
        except WeightError as error:
            return dict.fromkeys(group.hosts, f"its sender did not get it: {error}")
        except Exception as error:  # of vLLM, torch or Ray: the group is of no more use
            self._group, self._why_none = None, f"the broadcast failed: {first_line(error)}"
            await self._close(group)
            self._form_later()
            return dict.fromkeys(group.hosts, self._why_none)
        finally:
            self._store.release()

    def _form_later(self) -> None:
        if self._forming is None or self._forming.done():
            self._forming = asyncio.create_task(self._form())

    async def _form(self) -> None:
        """Form a group of all hosts that have joined and answer; again if others join meanwhile."""
        hosts: dict[str, Any] = {}
        while hosts != self._joined:
            await asyncio.sleep(SETTLE_S)
            group, self._group = self._group, None  # first: nobody waits for the new one
            async with self._turn:
                if group is not None:
                    await self._close(group)
                hosts = dict(self._joined)
                for host, there in zip(hosts, await asyncio.gather(*map(_answers, hosts.values())), strict=True):
                    if not there and self._joined.get(host) is hosts[host]:
                        del self._joined[host]
                if hosts and hosts == self._joined:
                    await self._try_form(hosts)

    async def _try_form(self, hosts: dict[str, Any]) -> None:
        try:
            self._group = await asyncio.to_thread(self._make_group, hosts)
        except Exception as error:  # of vLLM, torch or Ray: the next version is another try
            self._why_none = f"no group of {len(hosts)} hosts: {first_line(error)}"
        else:
            self._why_none = "the group is being formed"

    def _make_group(self, hosts: dict[str, Any]) -> _Group:
        with _within(FORM_S):
            if self._source is None:
                _prepare_environment(self._gpus)
                self._device.prepare()
                from olmorl.queues.weights.vllm_transfer import SentChunks

                self._source = SentChunks(self._device.name, self._moved)
        return _Group(hosts, ray.util.get_node_ip_address(), self._source, self._device.stall_s)

    @staticmethod
    async def _close(group: _Group) -> None:
        with suppress(RuntimeError):
            await asyncio.to_thread(group.close)

    def _moved(self) -> None:
        faulthandler.dump_traceback_later(self._device.stall_s, exit=True)


class HostTransfer:
    """Has versions brought to this host. `bring` returns after every outcome of a transfer, and the store can be used.

    The first actor that asks makes the sender, on its host. Each other host gets a receiver.

    Args:
        most_s: `bring` waits no longer, whatever the size of the version.
        host: name of this host; default: its id in Ray.
    """

    def __init__(
        self,
        run: str,
        open_store: OpenStore,
        most_s: float,
        device: TransferDevice | None = None,
        host: str | None = None,
    ) -> None:
        self._run = run
        self._open_store = open_store
        self._most_s = most_s
        self._device = device or TransferDevice()
        self._given_host = host
        self._made: dict[str, Any] = {}
        """Processes that this one has made; they end with it."""
        self._joining: Any = None
        """The last answer of the receiver, perhaps still to come."""
        self._said = ""

    def bring(self, manifest: WeightsReady) -> None:
        """Wait until the version is here, or until it will not come in this way."""
        limit_s = min(self._most_s, self._device.stall_s + 2 * manifest.num_bytes / SLOWEST_BYTES_PER_S)
        try:
            problem = self._ask(manifest.version, limit_s)
        except RayError as error:
            problem = f"Ray does not answer: {first_line(error)}"
        if problem != self._said:
            _log.info("weights %s: %s", manifest.version, f"by the store: {problem}" if problem else "by transfer")
        self._said = problem

    def _ask(self, version: Version, limit_s: float) -> str:
        sender = find(self._sender)
        if sender is None:
            self._make_sender()
            return "there was no sender"
        try:
            problem: str | None = ray.get(sender.bring.remote(version, self._host), timeout=limit_s)
        except RayError as error:
            _kill(sender)  # if it is dead: so that Ray does not find it here again
            _kill(find(self._receiver))  # it may hang in the same broadcast, and have the lock of the version
            return f"the sender is lost: {first_line(error)}"
        return self._join(sender) if problem is None else problem

    def _join(self, sender: Any) -> str:
        """Have this host in the next group; returns why it was not in this one."""
        joining, self._joining = self._joining, None
        if failure := _failure(joining):
            _kill(find(self._receiver))  # as above
            return failure
        receiver = find(self._receiver) or self._make(self._receiver, Receiver)
        self._joining = receiver.join.remote(sender)
        return "this host was not in the group"

    @property
    def _host(self) -> str:
        return self._given_host or str(ray.get_runtime_context().get_node_id())

    @property
    def _sender(self) -> str:
        return f"olmorl-sender-{self._run}"

    @property
    def _receiver(self) -> str:
        return f"olmorl-receiver-{self._run}-{self._host}"

    def _make_sender(self) -> None:
        _kill(find(self._receiver))  # this host sends from now on
        self._make(self._sender, Sender)

    def _make(self, name: str, kind: type) -> Any:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._made[name] = make_here(name, kind, self._host, self._open_store, self._device, gpus)
        return self._made[name]

    def sweep(self) -> None:
        """End the processes that this one has made."""
        while self._made:
            _kill(self._made.popitem()[1])


def _kill(actor: Any) -> None:
    """End a Ray actor, if there is one."""
    with suppress(RayError):
        if actor is not None:
            ray.kill(actor)


def _failure(answer: Any) -> str:
    """Why a receiver has ended, if this answer of it says so."""
    try:
        if answer is not None and ray.wait([answer], timeout=0)[0]:
            ray.get(answer)
    except RayError as error:
        return f"the receiver of this host ended: {first_line(error)}"
    return ""


async def _answers(receiver: Any) -> bool:
    try:
        await asyncio.wait_for(receiver.expect.remote(None), ANSWER_S)
    except (RayError, TimeoutError):
        return False
    return True


def _prepare_environment(gpus: str | None) -> None:
    """Let this process see these GPUs, and meet the others where Ray does. Call it before vLLM is imported.

    Ray hides all GPUs from an actor that asks for none. NCCL by itself may take an interface that reaches no host.
    """
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    interface = way_to(f"{ray.util.get_node_ip_address()}:1").interface
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
