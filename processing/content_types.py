"""Which types contradict one another: what libmagic found, what a client declared, what a name's extension says. Pure.

A type stands for one or more families; two types agree when they share one. What belongs to no family here cannot be
verified, and what cannot be verified contradicts nothing.
"""

from __future__ import annotations

import functools
import unicodedata


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What libmagic says when it recognizes nothing: no bytes, no known form, or just characters.
UNRECOGNIZED = frozenset(
    (
        "",
        "application/octet-stream",
        "binary/octet-stream",
        "application/x-empty",
        "inode/x-empty",
        "text/plain",
        "application/x-binary",
        "application/unknown",
        "application/x-download",
        "application/force-download",
        "application/x-www-form-urlencoded",  # what many HTTP clients declare for anything
    )
)

# Compressions that are also content codings (RFC 9110, 8.4.1; RFC 8878): the stored bytes of a page sent with
# Content-Encoding: gzip are gzip, whatever its type says.
CODINGS = frozenset(("application/gzip", "application/x-gzip", "application/zstd", "application/x-compress"))

# family → types of that family. A trailing "*" stands for any ending. First the whole kinds, then single formats.
FAMILIES: dict[str, str] = {
    "text": """text/* application/json application/*+json application/xml application/*+xml application/javascript
        application/x-javascript application/ecmascript application/x-ndjson application/jsonlines application/csv
        application/x-sh application/x-shellscript application/x-csh application/x-perl application/x-python
        application/x-ruby application/x-php application/x-httpd-php application/x-wine-extension-ini
        application/x-yaml application/yaml application/toml application/sql application/x-sql application/x-tex
        application/x-latex application/x-subrip application/pgp-signature application/pgp-keys application/mbox
        application/x-pem-file application/pem-certificate-chain application/x-setupscript application/x-bat
        application/x-msdos-batch application/rtf message/* image/svg* application/postscript application/x-troff*
        application/x-elc application/geo+json application/graphql application/x-ipynb+json application/x-mpegurl
        application/vnd.apple.mpegurl application/x-terminfo* application/dicom+json audio/x-mpegurl
        application/vnd.ms-excel""",  # a browser declares .csv so where Excel is installed
    "rtf": "text/rtf application/rtf application/msword",  # Word opens and writes RTF under .doc
    "pdf": "application/pdf application/x-pdf application/illustrator",
    "postscript": "application/postscript application/eps application/x-eps image/x-eps application/illustrator",
    "ole": """application/msword application/vnd.ms-* application/x-ole-storage application/CDFV2* application/vnd.visio
        application/x-msi application/x-tika-msoffice application/encrypted application/vnd.ms-office
        application/x-msaccess""",
    "zip": """application/zip application/x-zip application/x-zip-compressed application/x-xpinstall
        application/vnd.google-earth.kmz application/vnd.comicbook+zip application/x-cbz application/x-ios-app
        application/vnd.nuget.package application/x-wheel+zip application/wasm+zip model/3mf""",
    "java": "application/java-archive application/x-java-archive application/vnd.android.package-archive",
    "epub": "application/epub+zip",
    "executable": """application/x-dosexec application/x-msdownload application/vnd.microsoft.portable-executable
        application/x-ms-dos-executable application/x-msdos-program application/exe application/x-exe
        application/dos-exe application/x-winexe""",
    "elf": """application/x-executable application/x-pie-executable application/x-sharedlib application/x-object
        application/x-coredump application/x-elf""",
    "macho": "application/x-mach-binary application/x-mach-o*",
    "class": "application/x-java-applet application/java-vm application/x-java application/x-java-class",
    "jpeg": "image/jpeg image/jpg image/pjpeg image/jpx",
    "png": "image/png image/x-png image/apng image/vnd.mozilla.apng",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp image/x-bmp image/x-ms-bmp image/vnd.microsoft.bitmap",
    "icon": "image/x-icon image/vnd.microsoft.icon",
    "tiff": "image/tiff image/x-canon-cr2 image/x-adobe-dng image/x-nikon-nef image/x-sony-arw image/dng",
    "psd": "image/vnd.adobe.photoshop image/x-photoshop application/x-photoshop",
    "jpeg2000": "image/jp2 image/jpx image/jpm",
    "isobmff": """video/mp4 audio/mp4 video/quicktime video/3gpp* audio/3gpp* video/x-m4v audio/x-m4a audio/m4a
        image/heic* image/heif* image/avif* audio/x-m4b application/mp4""",
    "mpegaudio": "audio/mpeg audio/mp3 audio/x-mp3 audio/mpegapplication/octet-stream",
    "mpegvideo": "video/mpeg video/mp2t video/mp1s video/mpv video/mp2p video/x-mpeg",
    "aac": "audio/aac audio/x-aac audio/x-hx-aac-adts",
    "ogg": "audio/ogg video/ogg application/ogg audio/opus audio/vorbis",
    "matroska": "video/x-matroska video/webm audio/webm audio/x-matroska application/x-matroska",
    "wav": "audio/wav audio/x-wav audio/vnd.wave audio/wave",
    "avi": "video/x-msvideo video/avi video/msvideo",
    "flac": "audio/flac audio/x-flac",
    "midi": "audio/midi audio/x-midi",
    "asf": "video/x-ms-asf video/x-ms-wmv audio/x-ms-wma application/vnd.ms-asf",
    "flv": "video/x-flv",
    "tar": "application/x-tar application/x-gtar application/x-ustar",
    "bzip2": "application/x-bzip2 application/x-bzip application/bzip2",
    "xz": "application/x-xz application/x-lzma",
    "7z": "application/x-7z-compressed",
    "rar": "application/x-rar application/x-rar-compressed application/vnd.rar",
    "cab": "application/vnd.ms-cab-compressed application/x-cab",
    "iso": "application/x-iso9660-image application/x-cd-image",
    "font": "font/* application/font-* application/x-font-* application/vnd.ms-fontobject application/vnd.ms-opentype",
    "sqlite": "application/vnd.sqlite3 application/x-sqlite3",
    "parquet": "application/vnd.apache.parquet",
    "wasm": "application/wasm",
    "deb": "application/vnd.debian.binary-package application/x-debian-package application/x-archive",
    "rpm": "application/x-rpm application/x-redhat-package-manager",
}

# Zip-based documents: each a family of its own, and all of them agree with a zip nobody looked into.
_ZIPPED = ("application/vnd.openxmlformats-officedocument.", "application/vnd.oasis.opendocument.")
_MACROS = ".macroenabled.12"

# extension → the type it stands for. Only what says something: .bin, .dat, .tmp and unknown ones are not here.
_OOXML = "application/vnd.openxmlformats-officedocument."
EXTENSIONS: dict[str, str] = {
    extension: mime
    for mime, extensions in {
        "text/plain": """txt text log md rst csv tsv json ndjson jsonl xml xsd xsl html htm xhtml css js mjs tsx jsx
            py rb pl php sh bash bat cmd ps1 c h cc cpp hpp go rs java kt swift sql yaml yml toml ini cfg conf env tex
            srt vtt ics vcf svg eml mbox asc pem crt m3u m3u8 ipynb geojson gpx kml rss atom diff patch""",
        "text/rtf": "rtf",
        "application/pdf": "pdf",
        "application/postscript": "ps eps",
        "application/illustrator": "ai",
        "application/msword": "doc dot",
        "application/vnd.ms-office": "xls xlt ppt pps pot msg vsd mpp msi",
        "application/vnd.sqlite3": "sqlite sqlite3",
        "application/zip": "zip whl xpi kmz cbz nupkg ipa 3mf vsix",
        "application/java-archive": "jar war ear apk aar",
        "application/epub+zip": "epub",
        _OOXML + "wordprocessingml.document": "docx",
        _OOXML + "wordprocessingml.template": "dotx",
        _OOXML + "spreadsheetml.sheet": "xlsx",
        _OOXML + "spreadsheetml.template": "xltx",
        _OOXML + "presentationml.presentation": "pptx",
        _OOXML + "presentationml.slideshow": "ppsx",
        _OOXML + "presentationml.template": "potx",
        "application/vnd.ms-word.document.macroEnabled.12": "docm",
        "application/vnd.ms-word.template.macroEnabled.12": "dotm",
        "application/vnd.ms-excel.sheet.macroEnabled.12": "xlsm",
        "application/vnd.ms-excel.template.macroEnabled.12": "xltm",
        "application/vnd.ms-excel.addin.macroEnabled.12": "xlam",
        "application/vnd.ms-excel.sheet.binary.macroEnabled.12": "xlsb",
        "application/vnd.ms-powerpoint.presentation.macroEnabled.12": "pptm",
        "application/vnd.ms-powerpoint.slideshow.macroEnabled.12": "ppsm",
        "application/vnd.ms-powerpoint.template.macroEnabled.12": "potm",
        "application/vnd.oasis.opendocument.text": "odt",
        "application/vnd.oasis.opendocument.spreadsheet": "ods",
        "application/vnd.oasis.opendocument.presentation": "odp",
        "application/vnd.oasis.opendocument.graphics": "odg",
        "application/x-dosexec": "exe dll sys scr com cpl ocx",
        "application/x-sharedlib": "so elf ko",
        "application/x-mach-binary": "dylib",
        "application/java-vm": "class",
        "image/jpeg": "jpg jpeg jpe jfif",
        "image/png": "png apng",
        "image/gif": "gif",
        "image/webp": "webp",
        "image/bmp": "bmp dib",
        "image/x-icon": "ico",
        "image/tiff": "tif tiff dng nef cr2 arw",
        "image/vnd.adobe.photoshop": "psd",
        "image/jp2": "jp2 j2k",
        "video/mp4": "mp4 m4v m4a m4b mov qt 3gp 3g2 heic heif avif",
        "audio/mpeg": "mp3",
        "video/mpeg": "mpg mpeg m2ts",
        "audio/aac": "aac",
        "audio/ogg": "ogg oga ogv opus",
        "video/webm": "mkv mka webm",
        "audio/wav": "wav",
        "video/x-msvideo": "avi",
        "audio/flac": "flac",
        "audio/midi": "mid midi",
        "video/x-ms-asf": "wmv wma asf",
        "application/x-tar": "tar",
        "application/gzip": "gz tgz svgz",
        "application/zstd": "zst tzst",
        "application/x-bzip2": "bz2 tbz2 tbz",
        "application/x-xz": "xz txz lzma",
        "application/x-7z-compressed": "7z",
        "application/vnd.rar": "rar",
        "application/vnd.ms-cab-compressed": "cab",
        "application/x-iso9660-image": "iso",
        "font/sfnt": "ttf otf ttc woff woff2",
        "application/vnd.apache.parquet": "parquet",
        "application/wasm": "wasm",
        "application/vnd.debian.binary-package": "deb",
        "application/x-rpm": "rpm",
    }.items()
    for extension in extensions.split()
}

# What a policy means by "builtin": names that a desktop runs on a double click and that have no other everyday use.
# Not here: js, jar, app, com (as in example.com), dll and others that build artifacts and web sites are full of.
EXECUTABLE_EXTENSIONS = _words(
    """appref-ms bat chm cmd cpl exe gadget hta isp jnlp jse lnk msc msi msix msp mst pif ps1 ps1xml ps2 psc1 reg scf
    scr sct settingcontent-ms shb vb vbe vbs ws wsc wsf wsh xbap xll"""
)

_EXACT: dict[str, frozenset[str]] = {}
_PATTERNS: list[tuple[str, str, str]] = []  # beginning, ending, family
for _family, _types in FAMILIES.items():
    for _type in _types.lower().split():
        if "*" in _type:
            _PATTERNS.append((*_type.split("*", 1), _family))  # type: ignore[arg-type]
        else:
            _EXACT[_type] = _EXACT.get(_type, frozenset()) | {_family}


def bare(mime: str | None) -> str:
    """The type without parameters, in lower case; "" for none. (RFC 9110, 8.3.1)"""
    return (mime or "").partition(";")[0].strip().lower()


def recognized(mime: str | None) -> bool:
    """Whether libmagic's answer says anything that can be verified."""
    return bare(mime) not in UNRECOGNIZED


@functools.lru_cache(1024)
def families(mime: str | None) -> frozenset[str]:
    """The families a type stands for; empty when it cannot be verified."""
    name = bare(mime)
    if name in UNRECOGNIZED and name != "text/plain":
        return frozenset()
    if name.startswith(_ZIPPED) or name.endswith(_MACROS):
        return frozenset((name,))
    found = set(_EXACT.get(name, ()))
    found.update(family for start, end, family in _PATTERNS if name.startswith(start) and name.endswith(end))
    return frozenset(found)


def agree(sniffed: str | None, claimed: str | None) -> bool:
    """Whether a claim is compatible with what was found. What says nothing verifiable agrees with everything."""
    if not recognized(sniffed) or bare(sniffed) in CODINGS:
        return True
    found, said = families(sniffed), families(claimed)
    if not found or not said or found & said:
        return True
    opened = {family for family in found | said if "/" in family or family in ("java", "epub")}
    return bool(opened) and "zip" in found | said and len(opened) + 1 == len(found | said)


def extension(key: bytes | str) -> str:
    """The extension of a key's last segment: lower case, without the dot; "" for none.

    Trailing dots and blanks are ignored, as Windows ignores them, and so are stream names (``a.exe::$DATA``).
    Characters that nobody sees are left out and compatibility forms folded: ``a.ＥＸＥ`` is what it will be on
    somebody's desktop.
    """
    text = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    if not (text.isascii() and text.isprintable()):
        text = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) not in ("Cc", "Cf"))
    name = text.replace("\\", "/").rpartition("/")[2].rstrip(". ")
    stem, dot, end = name.rpartition(".")
    return end.partition(":")[0].rstrip(" ").casefold() if dot and (stem or end) else ""


def expected(name: str) -> str | None:
    """The type an extension stands for, or None when it says nothing."""
    return EXTENSIONS.get(name)


def contradiction(sniffed: str | None, declared: str | None, name: str) -> str | None:
    """What contradicts the sniffed type: "extension", "declared", or None.

    A compressed file is often declared as what is in it (``a.tar.xz`` as application/x-tar), so an extension that
    agrees with a compression settles it.
    """
    said = expected(name)
    if not agree(sniffed, said):
        return "extension"
    settled = said is not None and families(sniffed) & {"bzip2", "xz"} and families(sniffed) & families(said)
    return None if settled or agree(sniffed, declared) else "declared"
