"""Jobs: one thin file per command."""

import contextlib

with contextlib.suppress(ModuleNotFoundError):          # a source tree that is not installed
    from manta.hidden import refuse_others

    refuse_others()
