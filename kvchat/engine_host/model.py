"""Name, repository and sampling of the current model."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from kvchat.chat.record.messages import Conversation
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import FailureKind
from kvchat.engine.api.wire import ENGINE_DEFAULTS, Sampling
from kvchat.engine_host.host import SwitchingEngineHost
from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.gguf.template_options import TemplateOption, known_options
from kvchat.library.model_files import display_name, name_from_path
from kvchat.library.model_library import ModelLibrary
from kvchat.settings import Settings
from kvchat.text.language import _


class CurrentModel:
    """The model in use, from the settings or the user's server. Also looks up properties of other models by path."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        host: SwitchingEngineHost,
        library: ModelLibrary,
        engine_settings: Callable[[], Settings],
    ) -> None:
        """`settings` returns the current settings, `engine_settings` those of the engine, whose model may differ."""
        self._settings, self._host, self._library = settings, host, library
        self._engine_settings = engine_settings

    @property
    def path(self) -> str | None:
        return self._engine_settings().model_path

    @property
    def name(self) -> str | None:
        settings = self._settings()
        if settings.engine_url:
            facts = self._host.external.server_facts
            return name_from_path(Path(facts.model_path)) if facts and facts.model_path else _("the server’s model")
        return self.name_of(self.path) if self.path else None

    @property
    def label(self) -> str | None:
        """The model's name, with that of the paired computer that runs it."""
        computer = self._host.computer
        if computer and self._host.external.server_facts is None:
            return computer
        return _("{model} on {computer}", model=self.name, computer=computer) if computer else self.name

    def name_of(self, model: str) -> str:
        return display_name(Path(model))

    def name_for_conversation(self, conversation: Conversation | None) -> str | None:
        model = conversation.model if conversation and conversation.model else self._settings().model_path
        return self.name if self._settings().engine_url or model is None else self.name_of(model)

    @property
    def is_configured(self) -> bool:
        return bool(self._settings().model_path or self._settings().engine_url)

    @property
    def is_missing(self) -> bool:
        status = self._host.status
        kind = status.failure.kind if status.failure else None
        return status.state is EngineState.FAILED and kind is FailureKind.MODEL_MISSING

    @property
    def repository(self) -> str | None:
        return self._library.repository_of(Path(self.path)) if self.path else None

    def user_sampling(self) -> Sampling:
        settings = self._settings()
        return Sampling(settings.max_tokens, settings.temperature, settings.seed)

    def loaded_model_sampling(self) -> Sampling:
        return recommended_sampling(self._host.choice.facts) if self._host.choice else ENGINE_DEFAULTS

    async def default_sampling(self, model: str | None) -> Sampling:
        facts = await self._facts_of(model)
        return self.user_sampling().with_defaults(recommended_sampling(facts) if facts else ENGINE_DEFAULTS)

    async def template_options(self, model: str | None) -> tuple[TemplateOption, ...]:
        facts = await self._facts_of(model)
        return known_options(facts.template_variables) if facts else ()

    async def _facts_of(self, model: str | None) -> GgufFacts | None:
        if model is None or self._settings().engine_url:
            return None
        try:
            return await asyncio.to_thread(read_facts, Path(model))
        except KvchatError:
            return None


SMALL_MODEL_BYTES = 1_500_000_000

# Measured with ten replies of 400 tokens by SmolLM2-135M (b11434): 2 replies repeated themselves endlessly with the
# engine's defaults, 6 with the author's temperature 0.2 and top-p 0.9, and none with these values.
SMALL_MODEL_SAMPLING = Sampling(temperature=0.7, repeat_penalty=1.1)
STANDARD_SAMPLING = Sampling(temperature=0.7)


def recommended_sampling(facts: GgufFacts) -> Sampling:
    """Return kvchat's sampling for a model; ENGINE_DEFAULTS if its GGUF has defaults, which the engine applies."""
    if facts.has_sampling_defaults:
        return ENGINE_DEFAULTS
    return SMALL_MODEL_SAMPLING if facts.size < SMALL_MODEL_BYTES else STANDARD_SAMPLING
