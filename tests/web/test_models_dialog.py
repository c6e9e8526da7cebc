"""What is known of models before one is loaded, and how it is to be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.server.conftest import serving
from tests.server.fake_library import FakeLibrary, prepared
from tests.web.axe import needs_axe, violations
from tests.web.chromium import CHROMIUM, becomes, shows
from tests.web.made_up_models import FITS, LARGE, PLAIN, QUANTISED, TOO_LARGE, UNSUPPORTED
from unicorn_async.config import WeightScheme
from unicorn_async.engine.model_library import AdapterChoice, ListedModel, ModelChoice
from unicorn_async.errors import ConfigError
from unicorn_async.server import ModelHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.server.conftest import Served

DESK = {"width": 1280, "height": 800}
OTHERS = pytest.mark.whole("the other colours of each size")
PHONE = {"width": 390, "height": 844}
pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture
def library() -> FakeLibrary:
    """The models "a", which is plain, "b", quantised, "c", which can't run, and "large", which does not fit."""
    made = FakeLibrary()
    made.more = ("large",)
    made.facts = {"a": PLAIN, "b": QUANTISED, "c": UNSUPPORTED, "large": LARGE}
    made.plans = {"a": FITS, "b": FITS, "large": TOO_LARGE}
    made.adapter_names = ("poet", "cooking/chef")
    return made


@pytest_asyncio.fixture(loop_scope="session")
async def served(library: FakeLibrary) -> AsyncIterator[Served]:
    async with ModelHost(library) as models:
        await models.begin(prepared("a")).done()
        async with serving(models) as found:
            yield found


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, served: Served) -> AsyncIterator[Page]:
    """The dialog, open; what the page logs or throws fails the test, but for answers with an error's status."""
    page = await browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    await open_dialog(page, served)
    yield page
    await page.close()
    assert [problem for problem in problems if "Failed to load resource" not in problem] == []


async def open_dialog(page: Page, served: Served) -> None:
    await page.goto(served.url)
    await page.get_by_role("button", name="Models").click()
    await page.locator("[data-model='large']").wait_for()


async def text_of(page: Page, model: str) -> str:
    return (await page.locator(f"[data-model='{model}']").inner_text()).replace("\xa0", " ")


async def test_each_model_is_listed_with_what_is_known_of_it(page: Page) -> None:
    assert await text_of(page, "a") == "a\n8.0B · BF16 · safetensors · 16.1 GB\nloaded"
    assert await text_of(page, "b") == "b\n12.2B · Q4_K +1 · GGUF · 7.3 GB"
    assert await text_of(page, "c") == "c\nsafetensors · 5.0 GB\ncan't run"
    assert await text_of(page, "large") == "large\n70.6B · BF16 · safetensors · 140 GB\ntoo large"


async def test_models_are_found_by_name_type_and_size_and_loaded_by_enter(page: Page, library: FakeLibrary) -> None:
    search = page.get_by_role("combobox", name="Search models")
    await page.locator("#models-search:focus").wait_for()
    await page.keyboard.type("nothing like it")
    await shows(page, ".hint", "Nothing found")
    await search.fill("gguf 12.2b")
    await page.locator("[data-model='a']").wait_for(state="detached")
    assert await page.locator("[role='option']").count() == 1
    active = await search.get_attribute("aria-activedescendant")
    assert await page.locator(f"#{active}").get_attribute("data-model") == "b"
    await page.keyboard.press("Enter")
    await shows(page, "#model", "b")
    assert library.prepared == [ModelChoice("b")]


async def test_arrows_go_through_the_models_and_show_each(page: Page) -> None:
    await page.locator("#models-search:focus").wait_for()
    await page.keyboard.press("ArrowDown")
    await shows(page, "#model-details h3", "b")
    await page.keyboard.press("PageDown")
    await shows(page, "#model-details h3", "large")
    await page.keyboard.press("ArrowUp")
    await shows(page, "#model-details", "OddForCausalLM")
    await page.keyboard.press("PageUp")
    await shows(page, "#model-details h3", "a")
    assert await page.locator("#load-model").count() == 0  # it is loaded


async def test_it_is_told_where_a_model_would_lie(page: Page) -> None:
    await page.locator("[data-model='b']").click()
    await shows(page, "#placement", "Fits on NVIDIA GeForce RTX 4060, with a context of up to 2K tokens")
    assert await page.locator(".heap-name").inner_text() == "GPU memory\n6.7 GB of 6.8 GB"
    legend = await page.locator(".legend li").all_inner_texts()
    assert legend == ["Weights 5.0 GB", "KV cache 1.3 GB", "Activations 327 MB", "While it loads 67.1 MB"]
    await page.locator(".parts summary").click()
    rows = [" ".join(row.split()) for row in await page.locator(".parts tbody tr").all_inner_texts()]
    assert "Attention, layers 0 to 31 copy int4 755 MB GPU memory" in rows
    shares = await page.locator(".share").evaluate_all("all => all.map(share => share.getBoundingClientRect().width)")
    assert shares == sorted(shares, reverse=True)


async def test_a_scheme_a_context_and_adapters_go_into_plan_and_load(page: Page, library: FakeLibrary) -> None:
    library.plans["c"] = FITS
    library.facts["c"] = PLAIN
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Models").click()
    await page.locator("[data-model='c'] .facts", has_text="8.0B").wait_for()
    await page.locator("[data-model='c']").click()
    await page.get_by_label("Weights", exact=True).select_option("int4")
    await page.get_by_label("Context in tokens").fill("x")
    await shows(page, "#context-wrong", "whole number")
    assert await page.locator("#load-model").is_disabled()
    await page.get_by_label("Context in tokens").fill("2048")
    await page.locator(".adapters summary").click()
    await page.get_by_label("poet", exact=True).check()
    await page.get_by_label("Weight of poet").fill("0.5")
    await page.locator("#placement[aria-busy='false'] .fits").wait_for()
    wanted = ModelChoice("c", WeightScheme.INT4, 2048, (AdapterChoice("poet", 0.5),))
    assert library.planned[-1] == wanted
    await page.get_by_role("button", name="Load", exact=True).click()
    await shows(page, "#model", "c")
    assert library.prepared == [wanted]


async def test_what_is_quantised_already_is_not_quantised_again(page: Page) -> None:
    await page.locator("[data-model='b']").click()
    await shows(page, "#weights-hint", "Quantised already")
    assert await page.get_by_label("Weights", exact=True).is_disabled()


async def test_a_model_that_does_not_fit_says_why_and_is_not_loaded(page: Page) -> None:
    await page.locator("[data-model='large']").click()
    await shows(page, "#placement .problem", "Does not fit on NVIDIA GeForce RTX 4060: 9,123,456 bytes")
    assert await page.locator("#load-model").is_disabled()


async def test_a_model_that_can_not_run_says_why_and_is_not_planned(page: Page, library: FakeLibrary) -> None:
    await page.locator("[data-model='c']").click()
    await shows(page, "#model-details .problem", "config.json: architectures ['OddForCausalLM'] is not supported")
    assert await page.locator("#load-model").is_disabled()
    assert "c" not in [choice.name for choice in library.planned]


async def test_what_is_refused_is_told_in_place_and_gone_with_another_model(page: Page, library: FakeLibrary) -> None:
    library.refuse = ConfigError("max_context: expected at most the model's 100 tokens, got 200")
    await page.locator("[data-model='b']").click()
    await shows(page, "#placement", "expected at most")
    await page.get_by_role("button", name="Load", exact=True).click()
    await shows(page, "#models-error", "expected at most the model's 100 tokens")
    assert await page.locator("#models-dialog").is_visible()
    await page.locator("[data-model='large']").click()
    await page.locator("#models-error").wait_for(state="detached")


async def test_the_list_is_read_again_while_the_server_finds_out_more(browser: Browser) -> None:
    class Slow(FakeLibrary):
        num_listed = 0

        def models(self, time_s: float) -> tuple[ListedModel, ...]:
            self.num_listed += 1
            known = ("a", "b", "c")[: self.num_listed - 1]
            return tuple(ListedModel(name, PLAIN if name in known else None) for name in self.names())

    library = Slow()
    async with ModelHost(library) as models:
        await models.begin(prepared("a")).done()
        async with serving(models) as served:
            page = await browser.new_page()
            await page.goto(served.url)
            await page.get_by_role("button", name="Models").click()
            await page.locator("[data-model='c'] .facts").wait_for()
            assert library.num_listed == 4
            await page.close()


async def test_on_a_phone_the_details_take_the_place_of_the_list(browser: Browser, served: Served) -> None:
    page = await browser.new_page(viewport=PHONE, has_touch=True, is_mobile=True)
    await open_dialog(page, served)
    assert await page.locator("#models-search:focus").count() == 0  # or a keyboard would cover the list
    assert await page.locator("#model-details").count() == 0
    await page.locator("[data-model='b']").tap()
    await page.locator("#placement .fits").wait_for()
    assert await page.locator("#models-list").count() == 0
    assert await page.locator("#models-title").inner_text() == "b"
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    await page.get_by_role("button", name="Back").tap()
    assert await page.locator("[data-model='b']").get_attribute("aria-selected") == "true"
    await page.locator("[data-model='b']").tap()
    await page.get_by_role("button", name="Load", exact=True).tap()
    await shows(page, "#model", "b")
    await page.close()


@needs_axe
@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        (DESK, "light"),
        (PHONE, "dark"),
        pytest.param(DESK, "dark", marks=OTHERS),
        pytest.param(PHONE, "light", marks=OTHERS),
    ],
)
async def test_nobody_is_kept_out(
    browser: Browser, served: Served, library: FakeLibrary, size: dict, scheme: str
) -> None:
    page = await browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    await open_dialog(page, served)
    assert await violations(page) == []
    for model, shown in (("b", "#placement .fits"), ("large", "#placement .problem"), ("c", "#model-details .problem")):
        await page.locator(f"[data-model='{model}']").click()
        await page.locator(shown).wait_for()
        for fold in await page.locator("#model-details summary").all():
            await fold.click()
        assert await violations(page) == []
        if size is PHONE:
            await page.get_by_role("button", name="Back").click()
    library.refuse = ConfigError("no device")
    await page.locator("[data-model='b']").click()
    await page.get_by_role("button", name="Load", exact=True).click()
    await page.locator("#models-error").wait_for()
    assert await violations(page) == []
    await page.close()


async def test_the_keyboard_is_at_the_head_of_a_models_details_where_they_take_the_lists_place(page: Page) -> None:
    await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    await page.locator("[data-model='b']").click()
    await shows(page, "#models-title", "b")
    await becomes(page, "document.activeElement.id === 'models-title'")
