"""Algorithm 2: a query, two documents a turn, each judged; then their next two, another query, or the end."""

from __future__ import annotations

from agents.mrag.schemas import Fields
from agents.mrag.style import Style
from agents.mrag.work import Work
from ratchet.records import Passage


async def search(work: Work, style: Style, given: Fields | None) -> list[Passage]:
    """The documents judged relevant, in the order of finding; they also join `work.documents` as they are found.

    Where the paper is silent: a query without further documents (the index or its budget is at its end) is shown as
    such once, and the search ends if it is then asked for again.
    """
    tools, limit = work.tools, work.settings.max_search_turns
    dialogue = work.dialogue("searcher", style.system("searcher"), style.examples("searcher"))
    found: dict[str, Passage] = {}
    dry: set[int] = set()
    query = (await tools.ask(dialogue, style.give("searcher", given, work), style.query)).search_query
    turns = 0
    while True:
        if turns == limit:
            tools.note("searcher", f"stopped after {turns} turns (max_search_turns)")
            break
        page = await work.next_page(query)
        if page.remark:
            if page.query_id in dry:
                tools.note("searcher", f"stopped: {page.remark}")
                break
            dry.add(page.query_id)
        schema = style.review(len(page.passages), last=turns + 1 == limit)
        review = await tools.ask(dialogue, style.results(page), schema)
        verdict = style.verdict(review, page)
        for passage in verdict.relevant:
            found[passage.id] = passage
            work.keep(passage)
        turns += 1
        if verdict.end:
            break
        query = verdict.new_query or query
    return list(found.values())
