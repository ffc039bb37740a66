"""What a notebook displays of objects: well-formed, self-contained fragments that escape the texts of a model."""

from xml.etree import ElementTree

import numpy as np
import pytest
from torch import nn

import ingot
from models import block
from onnx_models import text_model

FORMS = (
    "Graph", "InferenceSession", "Explanation", "PlanReport", "Profile", "Trace", "Trainer", "Completion", "CacheUse",
)  # fmt: skip


@pytest.fixture(scope="module")
def shown() -> dict[str, object]:
    module, (x,) = block()
    session = ingot.InferenceSession(module, example_inputs=(x,), threads=1)
    feeds = {session.get_inputs()[0].name: x.numpy()}
    batch = np.float32([[1, 2], [3, 4]]), np.int64([0, 1])
    trainer = ingot.Trainer(nn.Linear(2, 2), example_inputs=batch, optimizer=ingot.SGD(lr=0.1))
    for _ in range(3):
        trainer.step(*batch)
    llm = ingot.LLM("tiny-lm", sequences=2)
    return {
        "Graph": session.graph, "InferenceSession": session, "Explanation": session.explain(),
        "PlanReport": session.plan, "Profile": session.profile(feeds), "Trace": session.trace(feeds, runs=2),
        "Trainer": trainer, "Completion": llm.complete("def", max_tokens=3, temperature=0),
        "CacheUse": llm.cache,
    }  # fmt: skip


def fragment(html: str) -> ElementTree.Element:
    """The elements of a fragment. Raises ParseError where it is not well-formed."""
    assert "<script" not in html and "://" not in html
    return ElementTree.fromstring(f"<div>{html}</div>")


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_well_formed(shown, name):
    assert fragment(shown[name]._repr_html_()).itertext()


def test_drawings_have_all_that_they_draw(shown):
    rectangles = {name: len([*fragment(shown[name]._repr_html_()).iter("rect")]) for name in ("PlanReport", "Trace")}
    tensors = [each for each in shown["PlanReport"].layout()["tensors"] if each["region"].startswith("arena")]
    assert rectangles == {"PlanReport": len(tensors), "Trace": (shown["Trace"].times[-1, :, :, 1] > 0).sum()}
    labels = {each.text for each in fragment(shown["Trace"]._repr_html_()).iter("text")}
    slowest = max(shown["Trace"].steps, key=lambda step: step.nanoseconds)
    assert any(slowest.kernel.startswith(label.rstrip("\u2026")) for label in labels)
    (line,) = fragment(shown["Trainer"]._repr_html_()).iter("polyline")
    assert len(line.attrib["points"].split()) == len(shown["Trainer"].losses) == 3


def test_texts_of_a_model_are_escaped():
    session = ingot.InferenceSession(
        text_model('g (float[2] x) => (y) { "<b>" = Relu (x) y = Neg ("<b>") }'), threads=1
    )
    cells = [cell.text for cell in fragment(session.graph._repr_html_()).iter("td")]
    assert cells.count("<b>") == 2


def test_a_long_table_is_cut():
    nodes = "".join(f"a{i + 1} = Neg (a{i}) " for i in range(60))
    session = ingot.InferenceSession(
        text_model(f"g (float[2] a0) => (y) {{ {nodes} y = Relu (a60) }}"), passes=(), executor="interpret"
    )
    html = session.graph._repr_html_()
    assert html.count("<tr>") == 41 and "and 21 rows more" in html
