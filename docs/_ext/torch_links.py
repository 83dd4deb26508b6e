"""Links from types of torch to its documentation. A site that is built without a network has no
inventory to look them up in, so the few that our signatures name are listed."""

from typing import Any

from docutils import nodes

SITE = "https://docs.pytorch.org/docs/stable/"
PAGES = {
    "torch.Tensor": "tensors.html",
    "torch.Generator": "generated/torch.Generator.html",
    "torch.device": "tensor_attributes.html#torch.device",
    "torch.dtype": "tensor_attributes.html#torch.dtype",
    "torch.nn.Module": "generated/torch.nn.Module.html",
    "torch.utils.data.Dataset": "data.html#torch.utils.data.Dataset",
}
PAGES |= {"Tensor": PAGES["torch.Tensor"], "nn.Module": PAGES["torch.nn.Module"]}
PAGES["torch.nn.modules.module.Module"] = PAGES["torch.nn.Module"]


def link(app: Any, env: Any, node: Any, content: nodes.Node) -> nodes.reference | None:
    page = PAGES.get(node.get("reftarget", "")) if node.get("refdomain") == "py" else None
    if page is None:
        return None
    return nodes.reference("", "", content, internal=False, refuri=SITE + page)


def setup(app: Any) -> dict[str, bool]:
    app.connect("missing-reference", link)
    return {"parallel_read_safe": True}
