import json

from stepwell.gateway.dialects.models import model_entry, model_json, models_json


def test_one_shape_is_a_model_of_both_sdks(sdks):
    sdks.say(model_json(model_entry("tiny", 4096, created=1_700_000_000)))
    ours, theirs = sdks.openai.models.retrieve("tiny"), sdks.anthropic.models.retrieve("tiny")
    assert (ours.id, ours.object, ours.owned_by, ours.created) == ("tiny", "model", "stepwell", 1_700_000_000)
    assert (theirs.id, theirs.type, theirs.created_at.timestamp()) == ("tiny", "model", 1_700_000_000)
    assert (theirs.display_name, theirs.max_input_tokens) == ("tiny", 4096)


def test_both_sdks_read_the_list_as_one_page(sdks):
    sdks.say(models_json([model_entry("a", 10), model_entry("b", 20)]))
    assert [model.id for model in sdks.openai.models.list()] == ["a", "b"]
    assert [model.id for model in sdks.anthropic.models.list()] == ["a", "b"]


def test_a_list_of_nothing_has_no_ends():
    page = json.loads(models_json([]))
    assert (page["data"], page["has_more"], page["first_id"], page["last_id"]) == ([], False, None, None)
