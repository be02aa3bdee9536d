"""The summary of random problems on pages: the total, and the slower problems, the slowest first."""

from bench import sweep_pages


def row(problem, ours, **peers):
    best = min(peers.values(), default=None)
    found = {"problem": problem, "us": {"opfacade": ours, **peers}}
    return found | ({"ratio": round(best / ours, 2)} if best else {})


def test_the_three_worst_stand_beside_their_fastest_peer():
    rows = [
        row("a", 2.0, torch=4.0),
        row("b", 4.0, torch=1.0, other=2.0),
        row("c", 1.0),
        row("d", 2.0, torch=3.0),
        row("e", 5.0, torch=4.0),
    ]
    counted, _, *table = sweep_pages.lines(rows)
    assert counted == "4 random problems, compared with other libraries: ours is slower than the fastest in 2 of them."
    assert sweep_pages.lines(rows, 7)[:2] == [counted, "7 more were not reached in time."]
    assert [line.split(" |")[0] for line in table[2:]] == ["| b", "| e", "| d"]
    assert table[2] == "| b | 4.0 | torch 1.0 | 0.25 |"


def test_a_product_without_a_peer_has_no_ratio():
    one = {
        "table": "sweep",
        "kind": "bf16",
        "rows": 1,
        "n": 2,
        "k": 3,
        "us": {"median": 5.0},
        "peers": {},
        "of_best_peer": None,
    }
    (found,) = sweep_pages.products({"rows": [one]})
    assert found == {"problem": "bf16 1 x 2 x 3", "us": {"opfacade": 5.0}, "ratio": None, "random": True}
    assert sweep_pages.lines([found])[0].startswith("0 random problems")
