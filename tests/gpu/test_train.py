"""On a GPU the packed training pass has the CPU's gradients, and half precision lowers the loss."""

import pytest
import torch

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folders import TEXTS, save_folder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def gradients(path: str, device: str) -> dict[str, torch.Tensor]:
    encoder = load_trainable(open_folder(EncoderSettings(path=path)), dropout=0.0).to(device)
    vectors = encoder(load_tokenizer(open_folder(EncoderSettings(path=path)).path, 64)(TEXTS))
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0)).to(device) / len(TEXTS)
    (vectors * weights).sum().backward()
    return {
        name: parameter.grad.cpu()
        for name, parameter in encoder.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet"])
def test_gradients_agree_with_those_of_the_cpu(family, tmp_path):
    path = str(save_folder(tmp_path, family))
    expected, found = gradients(path, "cpu"), gradients(path, "cuda")
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, atol=1e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_in_half_precision_lowers_the_loss(dtype, tmp_path):
    folder = open_folder(EncoderSettings(path=str(save_folder(tmp_path, "bert"))))
    encoder, tokens = load_trainable(folder).to("cuda"), load_tokenizer(folder.path, 64)(TEXTS)
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    losses = []
    for _ in range(30):
        with torch.autocast("cuda", dtype):
            views = [torch.nn.functional.normalize(encoder(tokens).float(), dim=1) for _ in range(2)]
        loss = torch.nn.functional.cross_entropy(
            views[0] @ views[1].T / 0.05, torch.arange(len(TEXTS), device="cuda")
        )
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
