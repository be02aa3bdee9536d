"""A figure on a page equals the rounded value of its record; a figure without a record is an error."""

import pytest

from tests.docs import figures

PAGES = figures.pages()


@pytest.mark.parametrize(("page", "source", "words"), figures.QUOTES)
def test_a_quoted_figure_is_that_of_its_record(page, source, words):
    assert figures.quote(source, words) in PAGES[page], f"{page} differs from the record: {figures.quote(source, words)}"


@pytest.mark.parametrize(("page", "sentence"), [(page, one) for page, some in figures.FACTS.items() for one in some])
def test_a_fact_is_on_its_page(page, sentence):
    assert sentence in PAGES[page]
    assert figures.FIGURE.search(sentence), "it holds no figure"


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_quoted_or_a_fact(page):
    assert not (found := figures.unheld(page, PAGES[page])), f"figures without a record: {found}; see tests/docs/figures.py"


@pytest.mark.parametrize(
    "words",
    [
        *("takes 1.7 us", "is 3 % faster", "x1.25 of it", "took 12ms", "at 700 TFLOP/s", "reads 4.2 TB/s", "1.4 times as fast"),
        *(
            "needs 156 MB less",
            "a 2x speedup",
            "20 minutes on two cores",
            "from 1,024 KiB",
            "costs 3 percent",
            "is 3\u00d7 faster",
        ),
        *(
            "takes 5 microseconds",
            "reaches 0.97 of the peer's speed",
            "gains a factor of 3",
            "grows 2.5-fold",
            "takes 12 us/token",
        ),
        *("makes 10 tokens/s", "is twice as fast", "holds 171 of 171 SKUs", "says 8098 passed", "has 1.2x of FlashInfer"),
    ],
)
def test_a_figure_without_a_record_is_found(words):
    assert figures.unheld("docs/using.md", f"A call {words}, as measured.")


@pytest.mark.parametrize("words", ["sm_90a and 128 rows", "f8_e4m3 x86-64", "8x kv1124", "OPF-S018", "a page of 16 tokens"])
def test_numbers_that_measure_nothing_are_left_alone(words):
    assert not figures.unheld("docs/using.md", words)


def test_another_figure_in_place_of_the_quoted_one_is_found():
    name, right = "docs/design.md", figures.quote("workspace", "needs {pool:.1f} GiB")
    assert right in PAGES[name]
    assert figures.unheld(name, PAGES[name].replace(right, "needs 13.9 GiB"))


def test_written_regions_and_generated_pages_are_held_by_their_own_tests():
    text = "a\n<!-- written by python -m bench.pages -->\n| 5 us |\n7 us\n<!-- end of what bench.pages writes -->\nb 3 us"
    assert figures.prose(text) == "a b 3 us"


def test_the_table_of_tuning_is_that_of_its_record():
    """Each row: the default's time, the best time, and what that saves."""
    text = (figures.ROOT / "docs/measuring.md").read_text()
    rows = figures.TUNED.findall(text)
    named = {short(row["problem"]): row for row in figures._json("tests/data/tune.json")["rows"]}
    assert len(rows) > 25
    for problem, cells in rows:
        record, (_, default, _, best, gain) = named[problem], [cell.strip() for cell in cells.split("|")]
        least = min(us for us, *_ in record["measured"].values())
        saved = 100 * max(0.0, 1 - least / record["default_us"])  # medians in the table of measurements are rounded
        wanted = [f"{record['default_us']:.1f}", f"{least:.1f}", f"{saved:.1f} %"]
        assert [default, best, gain] == wanted, problem


def short(problem):
    """The label of a problem of the record, for example `latent decode 1x kv393 h16/1 d512`."""
    words = problem.removesuffix(" causal").split()
    return " ".join(word for word in words if not word.startswith(("page", "bf16"))).replace("mla_decode", "latent decode")


def test_no_test_of_flashinfer_fails():
    """docs/migrating.md states this."""
    assert figures.SOURCES["peer_tests"]()["fail"] == 0
