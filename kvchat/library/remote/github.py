"""GitHub: what the newest releases of a repository have, and their files. Nothing is asked unless a method is called.

The releases, their files' names, sizes and `digest`: https://docs.github.com/en/rest/releases/releases#list-releases;
where a file lies: https://docs.github.com/en/repositories/releasing-projects-on-github/linking-to-releases
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kvchat import __version__
from kvchat.library.remote.hub import MOST_ANSWER, TIMEOUT_S, HubError, HubPart, Unreachable
from kvchat.system.files import collect, parse_json
from kvchat.words.language import _

if TYPE_CHECKING:
    import httpx2

MOST_RELEASES = 10
_SHA256 = "sha256:"


@dataclass(frozen=True)
class Release:
    """A release and those of its files that GitHub tells the SHA-256 of."""

    tag: str
    files: tuple[HubPart, ...]
    preview: bool = False


class GitHub:
    """GitHub, or whatever GITHUB_API_URL and GITHUB_SERVER_URL name. For any event loop; keeps no connection."""

    name = "GitHub"

    async def releases(self, repository: str) -> tuple[Release, ...]:
        """The newest releases of "owner/name", previews too, the newest first. Raises HubError."""
        base = (os.environ.get("GITHUB_API_URL") or "https://api.github.com").rstrip("/")
        accept = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        async with self._answer(f"{base}/repos/{repository}/releases?per_page={MOST_RELEASES}", accept) as response:
            try:
                listed = parse_json(await collect(response.aiter_bytes(), MOST_ANSWER))
                return tuple(_release(one) for one in listed if not one["draft"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise HubError(
                    _("The answer makes no sense"),
                    f"{base}: {error!r}.",
                    _("Something else than GitHub may have answered."),
                ) from error

    def page(self, repository: str) -> str:
        """Where a repository's releases can be looked at."""
        return f"{_server()}/{repository}/releases"

    @contextlib.asynccontextmanager
    async def download(self, repository: str, revision: str, path: str, start: int) -> AsyncIterator[httpx2.Response]:
        """The bytes of a release's file from `start` on, as a response to be streamed. Raises HubError."""
        url = f"{_server()}/{repository}/releases/download/{quote(revision)}/{quote(path)}"
        async with self._answer(url, {"Range": f"bytes={start}-"} if start else {}) as response:
            yield response

    @contextlib.asynccontextmanager
    async def _answer(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx2.Response]:
        """A good answer, its body not yet read; every failure in words, those while the body is read too."""
        import httpx2

        # Bytes have to come as they lie: compressed ones cannot be counted.
        sent = {"User-Agent": f"kvchat/{__version__}", "Accept-Encoding": "identity", **headers}
        host = urlsplit(url).netloc
        try:
            async with (
                httpx2.AsyncClient(follow_redirects=True, timeout=TIMEOUT_S) as client,
                client.stream("GET", url, headers=sent) as response,
            ):
                response.raise_for_status()
                yield response
        except httpx2.HTTPStatusError as error:
            raise _refused(host, error.response.status_code, url) from error
        except httpx2.TimeoutException as error:
            raise _unreachable(_("{host} did not answer in time.", host=host)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _unreachable(_("There is no connection to {host}.", host=host)) from error


def _server() -> str:
    return (os.environ.get("GITHUB_SERVER_URL") or "https://github.com").rstrip("/")


def _refused(host: str, status: int, url: str) -> HubError:
    if status == 404:
        return HubError(
            _("GitHub has no such file"), _("{url} is gone.", url=url), _("Try again: there may be a newer one.")
        )
    if status in (403, 429):  # asked without an account: 60 times an hour
        return HubError(
            _("GitHub asks for patience"),
            _("{host} gets too many requests from here.", host=host),
            _("Try again later."),
        )
    kind = Unreachable if status >= 500 else HubError
    return kind(
        _("GitHub has a problem"),
        _("{host} answered {status}.", host=host, status=status),
        _("Try again later."),
    )


def _unreachable(why: str) -> Unreachable:
    return Unreachable(_("GitHub cannot be reached"), why, _("Check the internet connection and try again."))


def _release(one: dict[str, Any]) -> Release:
    files = [
        HubPart(str(asset["name"]), int(asset["size"]), str(asset["digest"]).removeprefix(_SHA256))
        for asset in one["assets"]
        if str(asset.get("digest") or "").startswith(_SHA256) and asset.get("state", "uploaded") == "uploaded"
    ]
    return Release(str(one["tag_name"]), tuple(files), bool(one["prerelease"]))
