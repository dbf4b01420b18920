"""The page of a shadow."""

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from pipeline.report.shadow import ShadowPage, ShadowRow, render_shadow
from pipeline.serve.comparisons import Estimate
from pipeline.serve.page import POLICY
from pipeline.serve.shadow import Shadow


def add_shadow_page(app: FastAPI, shadow: Shadow | None) -> None:
    """Add the route of the page, which shows the same as GET /release."""

    @app.get("/shadow", response_class=HTMLResponse, include_in_schema=False)
    def shadow_page() -> HTMLResponse:
        if shadow is None:
            raise HTTPException(404, "this service has no shadow: start it with --shadow")
        report = shadow.report()
        found = report.differences
        rows = (
            _row("answers in common, of the first ten", found.overlap_at_10, "{:.1%}"),
            _row("rank correlation of the common ids (Kendall's tau)", found.kendall_tau, "{:.3f}"),
            _row("score of the shadow minus score of the service", found.score_shift, "{:+.4f}"),
            _row("requests to the service, median, ms", found.first_ms, "{:.1f}"),
            _row("searches of the shadow, median, ms", found.second_ms, "{:.1f}"),
        )
        page = ShadowPage(
            name=report.name,
            compared_with=report.compared_with,
            state=report.state,
            verdict=report.verdict,
            rows=rows,
            outcomes=report.outcomes,
        )
        return HTMLResponse(render_shadow(page), headers=POLICY)


def _row(label: str, estimate: Estimate | None, format: str) -> ShadowRow:
    if estimate is None:
        return ShadowRow(label, "unknown", "")
    if estimate.low is None or estimate.high is None:
        return ShadowRow(label, format.format(estimate.value), "too few requests")
    low, high = format.format(estimate.low), format.format(estimate.high)
    return ShadowRow(label, format.format(estimate.value), f"{low} to {high}")
