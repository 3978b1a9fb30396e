"""Each token of a response is in one bucket of lags and in one place."""

import pytest
import torch

from examples.async_rl.lags import by_lag, by_position, shares


def test_a_token_is_in_the_bucket_of_its_lag():
    mask = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    lags = torch.tensor([[0, 1, 3, 4, 7, 8], [2, 2, 90, 0, 0, 0]])

    sizes = {name: int(tokens.sum()) for name, tokens in by_lag(mask, lags)}

    assert sizes == {"0": 1, "1": 1, "2": 2, "3": 1, "4-7": 2, "8+": 2}


@pytest.mark.parametrize(
    ("length", "sizes"),
    [(3, (3, 0, 0)), (256, (256, 0, 0)), (300, (256, 0, 44)), (600, (256, 88, 256))],
)
def test_a_token_has_one_place_in_its_response(length, sizes):
    mask = torch.zeros((2, 700), dtype=torch.bool)
    mask[0, :length] = True

    places = dict(by_position(mask))

    assert tuple(int(places[name].sum()) for name in ("first", "middle", "last")) == sizes
    assert torch.equal(sum(place.int() for place in places.values()), mask.int())
    if sizes[2]:
        assert places["last"][0, length - 1]


def test_shares_of_lags_add_up():
    assert shares([0, 0, 5, 12]) == {"0": 0.5, "1": 0, "2": 0, "3": 0, "4-7": 0.25, "8+": 0.25}
