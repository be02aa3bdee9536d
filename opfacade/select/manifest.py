"""SkuManifest: a JSON file with the SKUs that a fleet may run. It is created from current selections, compared, and enforced.

`OPFACADE_REQUIRE_SKU=manifest.json` restricts every selection of a process to the manifest. An unverified kernel is then an
error at `select`, with the reasons, instead of a change of bits in production."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, model_validator

from opfacade.base import regular_files
from opfacade.core.descriptor import Descriptor
from opfacade.core.model import FromList, Model, Version, contradiction
from opfacade.core.preference import Preference
from opfacade.core.sku import OLDER_FORM, is_older_sku_id, is_sku_id
from opfacade.core.target import Target
from opfacade.errors import DescriptorError, FallbackWarning, FileError, Issue, SettingError, from_issues
from opfacade.select import target_notes
from opfacade.select.binaries import SkuBinary, Standing, binary_of, differing, standings
from opfacade.select.pins import NO_PINS, Allowed
from opfacade.select.selection import Option, choose, require_choice, survey
from opfacade.select.sku_differences import differences, kernel, nearest

_OLDER = f"is {OLDER_FORM}; `opfacade manifest freeze` writes the ids of today"
_FROZEN = "`opfacade manifest freeze` writes them."


def _ids(values: tuple[str, ...]) -> tuple[str, ...]:
    for place, value in enumerate(values):
        if not is_sku_id(value):
            hint = f"It {_OLDER}." if is_older_sku_id(value) else _FROZEN
            raise contradiction(str(place), "a SKU id", value, hint)
    if list(values) != sorted(set(values)):
        place = next(i for i in range(1, len(values)) if values[i - 1] >= values[i])
        raise contradiction(
            str(place), f"an id after that of skus.{place - 1}, because ids are sorted and unique", values[place]
        )
    return values


class SkuManifest(Model):
    """The ids of the SKUs that may run, sorted. `note` is free text.

    binaries: digests of code and compilers for the ids of compiled SKUs, sorted by id. They do not restrict selection;
    `opfacade manifest check` compares them.
    """

    hints: ClassVar[Mapping[str, str]] = MappingProxyType({"skus": _FROZEN})
    schema_version: Version = 1
    note: str = ""
    skus: Annotated[tuple[str, ...], FromList, AfterValidator(_ids)]
    binaries: Annotated[tuple[SkuBinary, ...], FromList] = ()

    @model_validator(mode="after")
    def _binaries_of_skus(self) -> SkuManifest:
        named = [binary.sku for binary in self.binaries]
        if named != sorted(set(named)) or not set(named) <= set(self.skus):
            raise contradiction("binaries", "at most one entry for each id in `skus`, sorted by id", named)
        return self

    @classmethod
    def freeze(
        cls,
        descriptors: Descriptor[Any] | Iterable[Descriptor[Any]],
        prefer: Preference | None = None,
        target: Target | None = None,
        note: str = "",
    ) -> SkuManifest:
        """Selections for these descriptors now, on a target that need not be present; ignores the current manifest.

        A FallbackWarning names the first descriptor that no kernel supports: the reference SKU runs every problem with its op
        and element types, so a lock that contains it refuses little. With Preference(backend="cuda"), such a descriptor is
        refused. Raises ArgumentError (OPF-M003) without descriptors, and ArgumentTypeError for arguments of other types."""
        given = _given(descriptors)
        require_choice("manifest", "freeze", prefer, target)
        preference, target = (prefer or Preference()).revalidated(), target or Target.current()
        chosen = {option.sku.id: (option, d) for d in given if (option := _chosen(d, preference, target)).sku}
        if not target.is_cpu:
            _warn_of_references(chosen)
        found = [binary_of(option, d, target) for _, (option, d) in sorted(chosen.items())]
        return cls(skus=tuple(sorted(chosen)), binaries=tuple(binary for binary in found if binary), note=note)

    def allows(self, sku_id: str) -> bool:
        return sku_id in self.skus

    def enforce(self, prefer: Preference | None = None) -> Preference:
        """The preference restricted to this manifest: a SKU must be in both, so SKUs that are not in `prefer.allow` stay
        refused. Without a common SKU, it allows none. Raises ArgumentTypeError (OPF-S032) if `prefer` is not a Preference."""
        require_choice("manifest", "enforce", prefer)
        prefer = prefer or Preference()
        allow = self.skus if prefer.allow is None else tuple(sku for sku in self.skus if sku in prefer.allow)
        return prefer.model_copy(update={"allow": allow}).revalidated()

    def diff(self, other: SkuManifest) -> ManifestDiff:
        """The SKUs that `other` adds and removes; a pair that differs in few facts counts as a change of one kernel. Raises
        ArgumentTypeError (OPF-M004) if `other` is not a manifest."""
        _require_manifest("diff", other)
        added, removed = sorted(set(other.skus) - set(self.skus)), sorted(set(self.skus) - set(other.skus))
        changed = []
        for old in list(removed):
            new = nearest(old, added)
            if new is not None:
                changed.append((old, new))
                added.remove(new)
                removed.remove(old)
        pairs = [(mine, theirs) for mine in self.binaries for theirs in other.binaries if mine.sku == theirs.sku]
        rebuilt = tuple((old.sku, " and ".join(found)) for old, new in pairs if (found := differing(old, new)))
        return ManifestDiff(tuple(added), tuple(removed), tuple(changed), rebuilt)

    def standings(self, other: SkuManifest) -> tuple[Standing, ...]:
        """Compares each SKU of `other`, such as a manifest frozen now, with this manifest. Raises ArgumentTypeError (OPF-M004)
        if `other` is not a manifest."""
        _require_manifest("standings", other)
        return standings(self.skus, self.binaries, other.skus, other.binaries)

    def save(self, path: Path | str) -> None:
        """Writes the manifest as JSON atomically: a concurrent reader gets the old or the new version. Raises FileError if it
        cannot be written."""
        try:
            regular_files.replace(path, self.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise FileError.of(f"manifest: {path} cannot be written: {error.strerror}. [OPF-M002]", error) from error

    @classmethod
    def load(cls, path: Path | str) -> SkuManifest:
        """Reads a manifest from a regular file of at most 64 MiB. Raises DescriptorError if the file or its content is
        invalid."""
        try:
            return cls.model_validate_json(regular_files.read(path))
        except OSError as error:
            raise DescriptorError(f"manifest: {path} cannot be read: {error.strerror}. [OPF-M001]", code="OPF-M001") from error


def _require_manifest(stage: str, other: object) -> None:
    if not isinstance(other, SkuManifest):
        hint = "Read it with SkuManifest.load." if isinstance(other, (str, Path)) else ""
        issue = Issue("OPF-M004", "other", "a SkuManifest", type(other).__name__, hint, kind="ArgumentTypeError")
        raise from_issues("manifest", stage, [issue])


@dataclass(frozen=True, slots=True)
class ManifestDiff:
    """SKU ids added and removed, and pairs (old, new) of a changed kernel. Falsy if nothing differs.

    rebuilt: (id, differences) of SKUs with the same guarantee but other code or compilers.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[tuple[str, str], ...]
    rebuilt: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.rebuilt)

    def __str__(self) -> str:
        """One section per kind of change, each with a header; a changed kernel is listed by its differences, other SKUs by
        id."""
        if not self:
            return "no difference"
        lines = [f"{len(self.changed)} changed, {len(self.added)} added, {len(self.removed)} removed"]
        for old, new in self.changed:
            lines += [f"changed: {kernel(old)}", *(f"  {difference}" for difference in differences(old, new))]
        lines += [f"same promise, other {found}: {sku}" for sku, found in self.rebuilt]
        for header, skus in (("added", self.added), ("removed", self.removed)):
            lines += [f"{header}:", *(f"  {sku}" for sku in skus)] if skus else []
        return "\n".join(lines)


def _given(descriptors: Descriptor[Any] | Iterable[Descriptor[Any]]) -> list[Descriptor[Any]]:
    single = isinstance(descriptors, Descriptor) or not isinstance(descriptors, Iterable)  # a descriptor iterates its fields
    found: list[Any] = [descriptors] if single else list(descriptors)
    wrong = next((d for d in found if not isinstance(d, Descriptor)), None)
    if wrong is not None:
        issue = Issue("OPF-S030", "descriptors", "Descriptors", type(wrong).__name__, kind="ArgumentTypeError")
        raise from_issues("manifest", "freeze", [issue])
    if not found:
        hint = "A manifest without a SKU would forbid every kernel."
        raise from_issues("manifest", "freeze", [Issue("OPF-M003", "descriptors", "at least one descriptor", "none", hint)])
    return found


def _warn_of_references(chosen: dict[str, tuple[Option, Descriptor[Any]]]) -> None:
    slow = [(sku, descriptor) for sku, (option, descriptor) in chosen.items() if option.candidate.backend == "reference"]
    if slow:
        (sku, descriptor), count = slow[0], f"{len(slow)} of {len(chosen)} SKUs"
        text = (
            f"manifest: {count} are of the reference; it allows every {descriptor.op} of its element types to run there: {sku}."
        )
        hint = 'Freeze with Preference(backend="cuda"), on the command line --backend cuda, to refuse what no kernel takes.'
        warnings.warn(f"{text} {hint}", FallbackWarning, stacklevel=3)


def _chosen(descriptor: Descriptor[Any], prefer: Preference, target: Target) -> Option:
    checked = descriptor.revalidated()
    options = survey(checked, prefer, target, NO_PINS)
    target_notes.warn(checked.op, target, options)
    return choose(checked, target, options)


def required(value: str) -> Allowed:
    """The SKUs that OPFACADE_REQUIRE_SKU allows: a manifest file, read again when it changes, or one SKU id."""
    path = Path(value)
    try:
        stat = path.stat()
    except OSError as error:
        if is_sku_id(value):
            return Allowed(frozenset({value}), "OPFACADE_REQUIRE_SKU")
        why = f": it {_OLDER}" if is_older_sku_id(value) else _no_file(value, error)
        message = f"OPFACADE_REQUIRE_SKU expected a manifest file or a SKU id, got {value[:80]!r}{why}. [OPF-E001]"
        raise SettingError(message, code="OPF-E001") from None
    return _read(path, stat.st_mtime_ns, stat.st_size)


def _no_file(value: str, error: OSError) -> str:
    """The error for a value of OPFACADE_REQUIRE_SKU that looks like a path but cannot be read."""
    if not (value.endswith(".json") or value.startswith(("/", "~", "."))):
        return ""
    return ", and there is no such file" if isinstance(error, FileNotFoundError) else f": {error.strerror}"


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> Allowed:
    try:
        return Allowed(frozenset(SkuManifest.load(path).skus), str(path))
    except DescriptorError as error:
        message = f"OPFACADE_REQUIRE_SKU expected a manifest file or a SKU id, got {path}: {error} [OPF-E001]"
        raise SettingError(message, code="OPF-E001") from error


def unlisted(
    manifest: SkuManifest,
    descriptors: Iterable[Descriptor[Any]],
    prefer: Preference | None = None,
    target: Target | None = None,
) -> tuple[str, ...]:
    """The SKUs that these descriptors select without a lock and that the manifest does not allow."""
    return tuple(sku for sku in SkuManifest.freeze(descriptors, prefer, target).skus if not manifest.allows(sku))
