"""Checks names on the hub with one short request. The libraries would retry for a minute."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any

from huggingface_hub import constants, get_token

from olmorl.config import Config, Model
from olmorl.deploy.preflight import data_trial
from olmorl.errors import DataError, ModelError, UserError
from olmorl.learner.data.readers import parse_spec

_DEADLINE_S = 3.0


def check(settings: Config, others_may: bool = False) -> None:
    """Check that model and data are folders and files here, or on the hub, or in its cache.

    Args:
        others_may: an unreachable hub is no error, because other hosts of the cluster may reach it.

    Raises:
        UserError: one of them is in none of these places.
    """
    check_model(settings.model, others_may)
    for key, texts in data_trial.specs(settings).items():
        for text in texts:
            check_data(key, parse_spec(text).name, others_may)


def check_model(model: Model, others_may: bool = False) -> None:
    """The same for model and tokenizer. Raises ModelError."""
    for key, name in (("model.path", model.path), ("model.tokenizer", model.tokenizer)):
        if name and not Path(name).is_dir():
            _check_name(key, name, "model", ModelError, others_may)


def check_data(key: str, name: str, others_may: bool = False) -> None:
    """The same for one data set, which `key` names. Raises DataError."""
    if not Path(name).exists():
        _check_name(key, name.partition("@")[0], "dataset", DataError, others_may)


def _check_name(key: str, name: str, kind: str, refusal: type[UserError], others_may: bool) -> None:
    parent = Path(name).parent
    if "/" in name and parent.is_dir():
        raise refusal(f"{key}: {name}: no such file or folder, though {parent}/ is there: check the name")
    if _is_cached(name, kind):
        return
    local = f"check the name, or give {key} a {'folder' if kind == 'model' else 'file'} that is here"
    if constants.is_offline_mode():
        raise refusal(
            f"{key}: {name}: no such folder here, and not in the hub's cache {_cache()} (HF_HUB_OFFLINE is set): "
            f"{local}"
        )
    try:
        _within(_DEADLINE_S, lambda: _ask(name, kind))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404):
            raise refusal(
                f"{key}: {name}: no such folder here, and the hub does not give it to you (HTTP {error.code}): check "
                "the name; if it is private or gated, set HF_TOKEN"
            ) from None
    except (OSError, ValueError, HTTPException) as error:
        if others_may:
            return
        reason = getattr(error, "reason", error)
        raise refusal(
            f"{key}: {name}: no such folder here, not in the hub's cache {_cache()}, and {constants.ENDPOINT} cannot "
            f"be reached ({reason}): {local}; or set HF_ENDPOINT to a mirror, or HF_HOME to a cache that has it and "
            "HF_HUB_OFFLINE=1"
        ) from None


def _within(deadline_s: float, ask: Callable[[], None]) -> None:
    """Call `ask` with a deadline, because the lookup of a host has none. Raises TimeoutError, or the error of `ask`."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            ask()
        except Exception as error:  # raised below
            failed.append(error)

    asking = Thread(target=run, daemon=True, name="hub")
    asking.start()
    asking.join(deadline_s)
    if asking.is_alive():
        raise TimeoutError(f"no answer within {deadline_s:g} s")
    if failed:
        raise failed[0]


def _ask(name: str, kind: str) -> None:
    """Send one request, without a retry."""
    request = urllib.request.Request(f"{constants.ENDPOINT}/api/{kind}s/{name}")
    if token := get_token():
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.build_opener(_KeepsToken).open(request, timeout=_DEADLINE_S) as answer:
        json.load(answer)


class _KeepsToken(urllib.request.HTTPRedirectHandler):
    """Follows a redirect, and sends the token to no other host."""

    def redirect_request(self, req: urllib.request.Request, *more: Any) -> urllib.request.Request | None:
        following = super().redirect_request(req, *more)
        if following is not None and following.host != req.host:
            following.remove_header("Authorization")
        return following


def _cache() -> Path:
    return Path(constants.HF_HUB_CACHE)


def cached_folder(name: str) -> Path | None:
    """The newest snapshot of a model in the hub's cache that has a config.json; None without one."""
    found = _cache().glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json")
    newest = max(found, key=lambda file: file.stat().st_mtime, default=None)
    return newest.parent if newest else None


def _is_cached(name: str, kind: str) -> bool:
    if (_cache() / f"{kind}s--{name.replace('/', '--')}" / "snapshots").is_dir():
        return True
    if kind != "dataset":
        return False
    from datasets.config import HF_DATASETS_CACHE

    return (Path(HF_DATASETS_CACHE) / name.replace("/", "___")).is_dir()
