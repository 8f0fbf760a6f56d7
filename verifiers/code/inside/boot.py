"""The first code in a sandbox process. It makes modules from sources it receives, so the sandbox needs no file of ours.

It runs as `python -I -S -c <this> FD [JSON]`. FD is the number of the control socket. The sources and settings are the
JSON argument; without one they come on standard input.
"""

import json
import sys
import types


def main() -> None:
    text = sys.argv[2] if len(sys.argv) > 2 else sys.stdin.buffer.read()
    sources, entry, settings = json.loads(text)
    for name, source in sources:
        module = sys.modules[name] = types.ModuleType(name)
        exec(compile(source, name, "exec"), module.__dict__)
        parent, _, child = name.rpartition(".")
        setattr(sys.modules.setdefault(parent, types.ModuleType(parent)), child, module)
    sys.modules[entry].main(int(sys.argv[1]), settings)


if __name__ == "__main__":
    main()
