"""Hugging Face: search for GGUF models, files of a repository, and the access token.

huggingface_hub's HfApi is not used, because it blocks, has no timeout and retries for 23 s without a network (version
2.4.0), while a search must end when the user types another letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from kvchat import __version__
from kvchat.errors import KvchatError
from kvchat.library.gguf.facts import part_name
from kvchat.library.model_files import is_projector, match_projector, quantisation_in
from kvchat.system.files import parse_json, read_limited
from kvchat.system.secret_store import SecretStore
from kvchat.text.language import N_, _

if TYPE_CHECKING:
    import httpx2

DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_RESULTS = 40
TIMEOUT_S = 20.0  # for connecting, and between chunks of data
MAX_RESPONSE_BYTES = 32_000_000
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class HubError(KvchatError):
    """A download server could not be reached or sent an invalid response."""


class Unreachable(HubError):
    """The connection failed or was interrupted, so a retry may help."""


class AccessNeeded(HubError):
    """The repository is gated or private and needs an access token. Its `page` shows the terms."""

    def __init__(self, title: str, detail: str, advice: str, page: str) -> None:
        super().__init__(title, detail, advice)
        self.page = page


@contextlib.asynccontextmanager
async def open_response(
    url: str,
    headers: Mapping[str, str],
    status_error: Callable[[httpx2.Response], HubError],
    connection_error: Callable[[Exception], HubError],
    method: str = "GET",
    **client_options: Any,
) -> AsyncIterator[httpx2.Response]:
    """Send a request and yield the streaming response. Raises HubError, also while the response is read.

    `status_error` makes the error for a status that is not a success, `connection_error` the error for a failed
    connection.
    """
    import httpx2

    sent = {
        "User-Agent": f"kvchat/{__version__}",
        "Accept-Encoding": "identity",
        **headers,
    }  # progress counts uncompressed bytes
    try:
        async with (
            httpx2.AsyncClient(follow_redirects=True, timeout=TIMEOUT_S, **client_options) as client,
            client.stream(method, url, headers=sent) as response,
        ):
            response.raise_for_status()
            yield response
    except httpx2.HTTPStatusError as error:
        raise status_error(error.response) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise connection_error(error) from error


def unreachable(title: str, host: str, error: Exception) -> Unreachable:
    import httpx2

    why = _("Could not connect to {host}.", host=host)
    if isinstance(error, httpx2.TimeoutException):
        why = _("{host} did not respond in time.", host=host)
    return Unreachable(title, why, _("Check the internet connection and try again."))


def unexpected_status(title: str, host: str, status: int) -> HubError:
    why = _("{host} returned HTTP status {status}.", host=host, status=status)
    return (Unreachable if status >= 500 else HubError)(title, why, _("Try again later."))


@dataclass(frozen=True)
class HubModel:
    repository: str  # "owner/name"
    downloads: int  # in the last 30 days
    likes: int
    updated: datetime | None
    gated: bool


@dataclass(frozen=True)
class HubPart:
    """A file in a repository. `size` is in bytes."""

    path: str  # within the repository
    size: int
    sha256: str


@dataclass(frozen=True)
class HubFile:
    """A model in a repository: all its files. The projector, if any, is the last one."""

    name: str  # without folder, part number and suffix
    quantisation: str  # from the file name; may be empty
    parts: tuple[HubPart, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def projector(self) -> HubPart | None:
        return next((part for part in self.parts if is_projector(part.path)), None)


@dataclass(frozen=True)
class HubRepository:
    repository: str
    revision: str  # commit hash, so that downloads match this listing
    gated: bool
    files: tuple[HubFile, ...]


class Hub:
    """Client for Hugging Face, or the host in HF_ENDPOINT. Usable on any event loop."""

    name = "Hugging Face"

    def __init__(self, token: Callable[[], str | None]) -> None:
        """Create a client. `token` is called in a thread, because a keyring may ask the user to unlock it."""
        self._token = token

    @property
    def endpoint(self) -> str:
        return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")

    def page(self, repository: str) -> str:
        return f"{self.endpoint}/{repository}"

    async def search(self, text: str) -> tuple[HubModel, ...]:
        """Return the GGUF repositories with this text in their name, most downloads first. Raises HubError."""
        query = {"search": text, "filter": "gguf", "sort": "downloads", "direction": -1, "limit": MAX_RESULTS}
        entries = await self._get_json("/api/models", query)
        with _hub_error_if_invalid(_("Search")):
            return tuple(
                HubModel(
                    str(entry["id"]),
                    int(entry.get("downloads") or 0),
                    int(entry.get("likes") or 0),
                    datetime.fromisoformat(entry["lastModified"]) if entry.get("lastModified") else None,
                    bool(entry.get("gated")),
                )
                for entry in entries
            )

    async def repository(self, repository: str) -> HubRepository:
        """Return the repository named "owner/name". Raises HubError and AccessNeeded."""
        entry = await self._get_json(f"/api/models/{repository}", {"blobs": "true"}, repository)
        with _hub_error_if_invalid(repository):
            files = _parse_files(entry.get("siblings") or ())
            return HubRepository(str(entry["id"]), str(entry["sha"]), bool(entry.get("gated")), files)

    @contextlib.asynccontextmanager
    async def download(self, repository: str, revision: str, path: str, start: int) -> AsyncIterator[httpx2.Response]:
        url_path = f"/{repository}/resolve/{revision}/{quote(path)}"
        async with self._open(url_path, repository, {"Range": f"bytes={start}-"} if start else {}) as response:
            yield response

    async def _get_json(self, path: str, query: Mapping[str, Any], repository: str = "") -> Any:
        async with self._open(f"{path}?{urlencode(query)}", repository, {}) as response:
            with _hub_error_if_invalid(str(response.request.url.host)):
                return parse_json(await read_limited(response.aiter_bytes(), MAX_RESPONSE_BYTES))

    @contextlib.asynccontextmanager
    async def _open(self, path: str, repository: str, headers: Mapping[str, str]) -> AsyncIterator[httpx2.Response]:
        token, host = await asyncio.to_thread(self._token), urlsplit(self.endpoint).netloc

        def status_error(response: httpx2.Response) -> HubError:
            status, code = response.status_code, response.headers.get("X-Error-Code")
            has_bad_token = response.headers.get("X-Error-Message") == "Invalid credentials in Authorization header"
            # The Hub answers 401 for private and for missing repositories.
            if status == 404 or (status == 401 and code != "GatedRepo" and not has_bad_token):
                advice = _("Check the name. A private model needs an access token from its owner.")
                return HubError(_("Model not found on Hugging Face"), repository, advice)
            if status in (401, 403):
                return self._access_error(status, repository, bool(token))
            if status == 429:
                why = _("{host} received too many requests.", host=host)
                return Unreachable(_("Hugging Face rate limit reached"), why, _("Try again later."))
            return unexpected_status(_("Hugging Face is having problems"), host, status)

        def connection_error(error: Exception) -> HubError:
            import httpx2

            if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
                why = _("“{host}” is not a valid address. Correct the HF_ENDPOINT environment variable.", host=host)
                return Unreachable(title, why, advice)
            return unreachable(title, host, error)

        title = _("Hugging Face cannot be reached")
        advice = _("Check the internet connection and try again.")
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise Unreachable(title, _("The HF_HUB_OFFLINE environment variable is set."), advice)
        if token:
            headers = {**headers, "Authorization": f"Bearer {token}"}
        async with open_response(self.endpoint + path, headers, status_error, connection_error) as response:
            yield response

    def _access_error(self, status: int, repository: str, has_token: bool) -> AccessNeeded:
        page = self.page(repository)
        terms = _("You must accept the terms of {repository} to download it.", repository=repository)
        if not has_token:
            advice = _("Accept them at {page}, then save an access token for your account in kvchat.", page=page)
            return AccessNeeded(_("This model requires an access token"), terms, advice, page)
        if status == 401:
            return AccessNeeded(
                _("Hugging Face rejected the access token"),
                _("The token may be revoked or incomplete."),
                _("Create a new one at {endpoint}/settings/tokens.", endpoint=self.endpoint),
                page,
            )
        advice = _(
            "Accept them at {page}, then try again. The access token needs permission to read gated repositories.",
            page=page,
        )
        return AccessNeeded(_("Your account has no access to this model"), terms, advice, page)


def parse_repository(text: str) -> str | None:
    """Return the "owner/name" in a text that is such a name or a Hugging Face URL, otherwise None."""
    text = text.strip()
    if "://" in text:
        text = "/".join(urlsplit(text).path.strip("/").split("/")[:2])
    return text if _REPOSITORY.fullmatch(text) else None


@contextlib.contextmanager
def _hub_error_if_invalid(source: str) -> Any:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(
            _("The response is invalid"),
            f"{source}: {error!r}.",
            _("The response may not come from Hugging Face. Check your network and proxy."),
        ) from error


def _parse_files(entries: Iterable[dict[str, Any]]) -> tuple[HubFile, ...]:
    """List the models among the files of a repository, except those without a hash or with a missing part."""
    parts: dict[str, HubPart] = {}
    for entry in entries:
        path, lfs = str(entry["rfilename"]), entry.get("lfs")
        if lfs and path.lower().endswith(".gguf"):
            size, sha256, inside = entry.get("size") or lfs["size"], lfs["sha256"], PurePosixPath(path)
            is_safe = not inside.is_absolute() and ".." not in inside.parts and not re.search(r"[\0-\x1f\\:]", path)
            has_size = isinstance(size, int) and 0 <= size < 2**53
            if is_safe and has_size and isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256):
                parts[path] = HubPart(path, size, sha256)
    files = []
    for path in (path for path in parts if not is_projector(path)):
        split = part_name(path)
        names = split.all_names if split else (path,)
        if path == names[0] and parts.keys() >= set(names):
            name = (split.stem if split else path.removesuffix(".gguf")).rpartition("/")[2]
            own = [parts[name] for name in names]
            # A projector counts only in the same folder, where `match_projector` looks for it later.
            folder = PurePosixPath(path).parent
            beside = {PurePosixPath(other).name: other for other in parts if PurePosixPath(other).parent == folder}
            models = [name for name in beside if not is_projector(name)]
            if projector := match_projector(PurePosixPath(path).name, models, list(filter(is_projector, beside))):
                own.append(parts[beside[projector]])
            files.append(HubFile(name, quantisation_in(name), tuple(own)))
    return tuple(sorted(files, key=lambda file: (file.size, file.name)))


TOKEN_ACCOUNT = "Hugging Face access token"
TOKEN_FILE_NAME = "huggingface-token"
EXTERNAL_LOCATION = N_("HF_TOKEN or the Hugging Face command-line tool")


@dataclass(frozen=True)
class AccessToken:
    value: str = field(repr=False)
    location: str  # completes the sentence "Saved in …"; EXTERNAL_LOCATION if kvchat did not save it


class TokenStore:
    """Stores the access token in the system's keyring, or in a file that only the user can read.

    A keyring may ask the user to unlock it, so do not call this on the event loop. The token never appears in logs,
    errors or reprs.
    """

    def __init__(self, config: Path) -> None:
        self._store = SecretStore(TOKEN_ACCOUNT, config / TOKEN_FILE_NAME)
        self._token: AccessToken | None = None
        self._is_loaded = False

    def load(self) -> AccessToken | None:
        if not self._is_loaded:
            from huggingface_hub import get_token

            self._token, self._is_loaded = None, True
            if stored := self._store.load():
                self._token = AccessToken(stored[0], stored[1].value)
            elif external := get_token():
                self._token = AccessToken(external, EXTERNAL_LOCATION)
        return self._token

    def value(self) -> str | None:
        token = self.load()
        return token.value if token else None

    def save(self, value: str) -> str:
        """Store a token and return the name of the place where it is kept.

        Raises KvchatError, or OSError if the token cannot be written.
        """
        value = value.strip()
        if not value.isascii() or not value.isprintable() or " " in value or len(value) < 8:
            raise KvchatError(
                _("This is not an access token"),
                _("An access token is a single word, such as hf_…"),
                _("Copy it again."),
            )
        self._is_loaded = False
        return self._store.save(value).value

    def forget(self) -> None:
        self._is_loaded = False
        self._store.forget()
