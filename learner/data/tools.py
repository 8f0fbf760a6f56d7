"""The schemas of an environment's tools, as chat templates show them."""

from __future__ import annotations

from typing import Any

from olmorl.errors import ConfigError
from olmorl.extension import load_function
from olmorl.tools import KEY, tools_of


def schemas(name: str) -> tuple[dict[str, Any], ...]:
    """Make the environment once, and read the public methods of one without `step`.

    Raises:
        ConfigError: it cannot be made, or a method has no type hints or no docstring.
    """
    try:
        environment = load_function(KEY, name)()
    except ConfigError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"{KEY} = {name!r} cannot be made: {type(error).__name__}: {error}") from None
    if not (tools := tools_of(environment)):
        return ()
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

    try:
        return tuple(get_json_schema(tool) for tool in tools.values())
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(f"{KEY} = {name!r}: {error}") from None
