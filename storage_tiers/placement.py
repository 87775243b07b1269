"""Where bytes of a storage class lie: a pure function of configuration."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

STANDARD = "STANDARD"

# Every name of botocore's StorageClass enumeration. Each is kept and shown, whether or not it has a tier of its own.
STORAGE_CLASSES: tuple[str, ...] = (
    STANDARD,
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "DEEP_ARCHIVE",
    "OUTPOSTS",
    "GLACIER_IR",
    "SNOW",
    "EXPRESS_ONEZONE",
    "FSX_OPENZFS",
    "FSX_ONTAP",
    "AWS_BACKUP_WARM",
    "AWS_BACKUP_LOW_COST_WARM",
)

# The classes whose objects have to be restored before a read (S3 API: RestoreObject). GLACIER_IR is online.
ARCHIVE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})


class InvalidStorageClass(ValueError):
    """S3 has no storage class of this name."""


@dataclass(frozen=True, slots=True)
class Placement:
    """classes: storage class → tier name. A class without a tier lies where STANDARD lies.

    archives: the names of the tiers that are archives. Raises InvalidStorageClass for a class S3 does not have, and
    ValueError when STANDARD would lie in an archive: then nothing could be served, or even scanned.
    """

    classes: Mapping[str, str]
    archives: Set[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        for name in self.classes:
            known(name)
        if STANDARD not in self.classes:
            raise ValueError("the storage class STANDARD needs a tier")
        if self.classes[STANDARD] in self.archives:
            raise ValueError("the storage class STANDARD cannot lie in an archive tier")

    def tier_of(self, storage_class: str) -> str:
        """The tier where bytes of this class end up. Raises InvalidStorageClass."""
        return self.classes.get(known(storage_class), self.classes[STANDARD])

    def landing(self, storage_class: str) -> str:
        """The tier where they arrive, and are processed: never an archive. Raises InvalidStorageClass."""
        tier = self.tier_of(storage_class)
        return self.classes[STANDARD] if tier in self.archives else tier

    def archived(self, storage_class: str) -> bool:
        """Whether an object of this class has to be restored before a read: the class decides, not where the bytes
        happen to lie. GLACIER and DEEP_ARCHIVE always, GLACIER_IR never; others when their tier is an archive.

        Raises InvalidStorageClass.
        """
        tier = self.tier_of(storage_class)
        return storage_class in ARCHIVE_CLASSES or (storage_class != "GLACIER_IR" and tier in self.archives)


def known(storage_class: str) -> str:
    """The class itself. Raises InvalidStorageClass when S3 has none of that name (names are case-sensitive)."""
    if storage_class not in STORAGE_CLASSES:
        raise InvalidStorageClass(storage_class)
    return storage_class
