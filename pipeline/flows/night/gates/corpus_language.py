"""Check on the first night of an encoder whether it knows the language of the texts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.flows.context import FlowContext
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.gates.fixed_queries import sampled_texts
from pipeline.flows.night.guess_corpus import guess_language, no_language
from pipeline.log import announce
from pipeline.settings import EncoderSettings
from pipeline.store.releases.manifest import Choice, ReleaseManifest

_LANGUAGE = "language"  # name of the choice
_ENGLISH = "en"
_UNKNOWN, _UNCHECKED = "unknown", "not checked"


def check_language(context: FlowContext, previous: ReleaseManifest | None, candidate: Candidate) -> Candidate:
    """Return the candidate with the language of its texts among its choices.

    The language is checked only for the default encoder, whose own language is known, and only if the
    previous release has no vectors of the same space.
    """
    manifest = candidate.manifest
    is_known = previous is not None and previous.space_id == manifest.space_id
    if is_known or context.job.encoder.path != EncoderSettings().path:
        return candidate
    sampled = sampled_texts(context.store, candidate)
    language = guess_language(sampled)
    found = language or no_language()
    choice = Choice(
        what=_LANGUAGE,
        chosen=language or (_UNKNOWN if found == _UNKNOWN else _UNCHECKED),
        sentence=f"{found}, from {len(sampled)} sampled texts" if language else found,
    )
    announce(f"{_LANGUAGE}: {choice.sentence}")
    for sentence in language_warnings((choice,)):
        announce(f"warning: {sentence}")
    choices = (*manifest.choices, choice)
    return replace(candidate, manifest=manifest.model_copy(update={"choices": choices}))


def language_warnings(choices: Sequence[Choice]) -> Iterator[str]:
    """Warn if the default encoder does not know the language of the texts, or if it was not checked."""
    for choice in choices:
        if choice.what == _LANGUAGE and choice.chosen == _UNCHECKED:
            yield f"the language of the texts was {choice.sentence}; {_knows_english()}"
        elif choice.what == _LANGUAGE and choice.chosen != _UNKNOWN:
            yield from foreign_warnings(choice.chosen)


def foreign_warnings(language: str | None) -> Iterator[str]:
    """Warn if a language is known and the default encoder does not know it."""
    if language not in (None, _ENGLISH):
        yield f"the texts seem to be in {language}; {_knows_english()}: name another encoder"


def _knows_english() -> str:
    return f"{EncoderSettings().path} knows English only"
