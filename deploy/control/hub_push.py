"""Pushes a checkpoint to the hub as a Hugging Face folder, in one commit: a push that was killed leaves none."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from olmorl.errors import ConfigError, DataError, OlmoRLError, ResourceError
from olmorl.learner.storage import checkpoint_dir
from olmorl.run_dir import RunFiles


def push(run_dir: Path, step: int | None, name: str, *, public: bool) -> tuple[int, str]:
    """Push the policy after `step`, or of the newest checkpoint; returns the step and the address of the commit.

    A repository that is not there is made. Files that the hub has already are not sent again.

    Raises:
        UserError: no such checkpoint, no token, or the hub refuses the name or the token.
        ResourceError: the hub cannot be reached, or the upload failed.
    """
    # The library would send by xet alone, also to a server that does not know it. HF_HUB_DISABLE_XET=0 asks for that.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # read by the import, which takes seconds
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if get_token() is None:
        raise ConfigError("the hub wants a token: set HF_TOKEN, or run hf auth login")
    api, chosen = HfApi(), checkpoint_dir.pick(RunFiles(run_dir).checkpoints, step)
    if chosen is None:
        raise DataError(f"{run_dir}: no checkpoint is complete yet")
    with ExitStack() as stack:
        try:
            api.create_repo(name, private=not public, exist_ok=True)  # before an export, which may take long
            folder = _exported(run_dir, chosen, stack)
            text = f"Step {chosen} of the run {run_dir.resolve().name}"
            done = api.upload_folder(repo_id=name, folder_path=folder, commit_message=text)
        except HFValidationError as error:
            raise ConfigError(f"{name}: no name of a repository, as in OWNER/NAME: {_first_line(error)}") from None
        except HfHubHTTPError as error:
            if error.response.status_code in (401, 403, 404):
                raise ConfigError(
                    f"{name}: the hub refuses it (HTTP {error.response.status_code}): check the name, and that the "
                    "token in HF_TOKEN may write there"
                ) from None
            raise ResourceError(f"{name}: the hub failed ({_first_line(error)}): the same command goes on") from None
        except OlmoRLError:
            raise
        except Exception as error:  # of its HTTP client, of hf_xet or of the disk
            raise ResourceError(f"{name}: not pushed ({_first_line(error)}): the same command goes on") from None
    return chosen, done.commit_url


def _exported(run_dir: Path, step: int, stack: ExitStack) -> Path:
    """The folder of the export of a step: that in the run, or one that is there until the stack is closed."""
    if (kept := RunFiles(run_dir).export_of(step)).is_dir():
        return kept
    from olmorl.learner.trainer.export import export

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="olmorl-push-")), "model")
    export(run_dir, step, folder)
    return folder


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
