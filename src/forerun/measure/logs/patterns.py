"""Patterns: the lines that usual training programs print, as expressions with named groups.

A group's name is a column of `keys.column_of` with its unit (`step`, `step_time_ms`, `loss`,
`samples_per_s`, `memory_mib` ...), so a pattern of one's own is written in the same way. Two
groups of any unit are read together: `time` with `time_unit`, `rate` with `rate_unit`,
`memory` with `memory_unit`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Numbers as they are printed: grouped, with an exponent, or shortened (1.2K).
N = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
NAN = rf"(?:{N}|nan|inf|-inf)"


@dataclass(frozen=True)
class Pattern:
    """One kind of line.

    Attributes:
        name: the program that prints it.
        hints: words that stand in every such line: a quick test before the expression.
        expression: with named groups.
        shortened: whether numbers end in K, M or B.
        example: such a line.
        zero_based: whether the first step is number 0, so that step n means n + 1 are done.
    """

    name: str
    hints: tuple[str, ...]
    expression: re.Pattern[str]
    example: str
    shortened: bool = False
    zero_based: bool = False

    def match(self, line: str) -> re.Match[str] | None:
        """Return the match in a line, None where there is none."""
        for hint in self.hints:
            if hint not in line:
                return None
        return self.expression.search(line)


def _pattern(
    name: str, hints: str, expression: str, example: str, shortened: bool = False,
    zero_based: bool = False,
) -> Pattern:  # fmt: skip
    compiled = re.compile(expression, re.VERBOSE)
    return Pattern(name, tuple(hints.split("&")), compiled, example, shortened, zero_based)


_TORCHTITAN = _pattern(
    "torchtitan", "step:&loss:",
    rf"\bstep:\s*(?P<step>\d[\d,]*)\s+(?:loss|global_avg_loss):\s*(?P<loss>{NAN})"
    rf"(?:.*?\bmemory:\s*(?P<memory>{N})\s*(?P<memory_unit>[KMG]i?B))?"
    rf"(?:.*?\b(?:tps|wps):\s*(?P<tokens_per_s_per_device>{N}))?"
    rf"(?:.*?\bmfu:\s*(?P<mfu_percent>{N})%)?",
    "step: 10  loss:  8.1234  memory: 20.50GiB(21.60%)  tps: 4,321  tflops: 100.2  mfu: 40.12%",
)  # fmt: skip
_MEGATRON = _pattern(
    "megatron", "iteration&elapsed time per iteration (ms):",
    rf"\biteration\s+(?P<step>\d+)\s*/\s*(?P<total_steps>\d+)\s*\|"
    rf"(?:\s*consumed\ samples:\s*(?P<samples>\d+)\s*\|)?"
    rf"(?:\s*consumed\ tokens:\s*(?P<tokens>\d+)\s*\|)?"
    rf".*?elapsed\ time\ per\ iteration\ \(ms\):\s*(?P<step_time_ms>{N})"
    rf"(?:.*?throughput\ per\ GPU\ \(TFLOP/s/GPU\):\s*(?P<tflops_per_device>{N}))?"
    rf"(?:.*?global\ batch\ size:\s*(?P<global_batch>\d+))?"
    rf"(?:.*?\blm\ loss:\s*(?P<loss>{NAN}))?",
    "iteration 10/ 500 | consumed samples: 2560 | elapsed time per iteration (ms): 12345.6 |"
    " learning rate: 1.5E-07 | global batch size: 256 | lm loss: 1.043E+01 |",
)  # fmt: skip
_MEGATRON_MEMORY = _pattern(
    "megatron", "max allocated:", rf"max\ allocated:\s*(?P<memory_mib>{N})",
    "[Rank 0] (after 10 iterations) memory (MB) | allocated: 12.1 | max allocated: 34.5 |",
)  # fmt: skip
_NANOTRON = _pattern(
    "nanotron", "iteration:&elapsed_time_per_iteration_ms:",
    rf"\biteration:\s*(?P<step>\d+)\s*/\s*(?P<total_steps>\d+)"
    rf"(?:.*?consumed_tokens:\s*(?P<tokens>{N}[KMBT]?))?"
    rf".*?elapsed_time_per_iteration_ms:\s*(?P<step_time_ms>{N}[KMBT]?)"
    rf"(?:.*?tokens_per_sec:\s*(?P<tokens_per_s>{N}[KMBT]?))?"
    rf"(?:.*?global_batch_size:\s*(?P<global_batch>{N}[KMBT]?))?"
    rf"(?:.*?lm_loss:\s*(?P<loss>{NAN}[KMBT]?))?"
    rf"(?:.*?cuda_max_memory_reserved:\s*(?P<memory_bytes>{N}[KMGBT]?))?",
    "iteration: 10 / 1000 | consumed_tokens: 10.5M | elapsed_time_per_iteration_ms: 1.23K |"
    " tokens_per_sec: 853K | tokens_per_sec_per_gpu: 107K | global_batch_size: 512 | lm_loss: 10.3",
    shortened=True,
)  # fmt: skip
_DEEPSPEED_TIMER = _pattern(
    "deepspeed", "global_step=&CurrSamplesPerSec=",
    rf"global_step=(?P<step>\d+),\s*RunningAvgSamplesPerSec={N},\s*"
    rf"CurrSamplesPerSec=(?P<samples_per_s>{N})"
    rf"(?:.*?MaxMemAllocated=(?P<memory>{N})(?P<memory_unit>[KMG]B))?",
    "epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=12.31,"
    " CurrSamplesPerSec=12.52, MemAllocated=4.3GB, MaxMemAllocated=10.21GB",
)  # fmt: skip
_DEEPSPEED = _pattern(
    "deepspeed", "step=&skipped=", r"\bstep=(?P<step>\d+),\s*skipped=\d+",
    "[Rank 0] step=10, skipped=0, lr=[1e-05], mom=[[0.9, 0.95]]",
)  # fmt: skip
_DEEPSPEED_PIPE = _pattern(
    "deepspeed", "steps:&loss:&iter time (s):",
    rf"\bsteps:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>{NAN})\s+iter\ time\ \(s\):\s*"
    rf"(?P<step_time_s>{N})(?:\s+samples/sec:\s*(?P<samples_per_s>{N}))?",
    "steps: 10 loss: 2.3456 iter time (s): 0.512 samples/sec: 124.98",
)  # fmt: skip
_TIMM = _pattern(
    "timm", "Train:&Time:",
    rf"\bTrain:\s*(?P<epoch_number>\d+)\s*\[\s*(?P<in_epoch>\d+)/(?P<steps_per_epoch>\d+)"
    rf".*?(?:Loss:\s*(?P<loss>{NAN}).*?)?Time:\s*(?P<step_time_s>{N})s,\s*"
    rf"(?P<samples_per_s>{N})/s",
    "Train: 0 [  50/1251 (  4%)]  Loss: 6.95 (6.94)  Time: 0.345s, 2968.12/s  (0.40s, 2560.00/s)",
    zero_based=True,
)  # fmt: skip
_TORCHVISION = _pattern(
    "torchvision", "Epoch: [&time:&data:",
    rf"\bEpoch:\s*\[(?P<epoch_number>\d+)\]\s*\[\s*(?P<in_epoch>\d+)/(?P<steps_per_epoch>\d+)\]"
    rf"\s+eta:.*?(?:img/s:\s*(?P<samples_per_s_of_process>{N}).*?)?"
    rf"(?:\bloss:\s*(?P<loss>{NAN}).*?)?\btime:\s*(?P<step_time_s>{N})(?:\s*\({N}\))?"
    rf"\s+data:\s*(?P<data_time_s>{N})(?:.*?max\ mem:\s*(?P<memory_mib>{N}))?",
    "Epoch: [0]  [  10/5005]  eta: 0:25:12  lr: 0.1  img/s: 812.3  loss: 6.9 (6.95)"
    "  time: 0.3150 (0.3022)  data: 0.0010 (0.0200)  max mem: 6789",
    zero_based=True,
)  # fmt: skip
_IMAGENET = _pattern(
    "torchvision", "Epoch: [&Time&Data",
    rf"\bEpoch:\s*\[(?P<epoch_number>\d+)\]\s*\[\s*(?P<in_epoch>\d+)/(?P<steps_per_epoch>\d+)\]"
    rf"\s+Time\s+(?P<step_time_s>{N})\s*\(\s*{N}\)\s+Data\s+(?P<data_time_s>{N})"
    rf"(?:.*?Loss\s+(?P<loss>{NAN}))?",
    "Epoch: [0][  10/5005]\tTime  0.315 ( 0.350)\tData  0.001 ( 0.020)\tLoss 6.9e+00 (7.0e+00)",
    zero_based=True,
)  # fmt: skip
_DETECTRON = _pattern(
    "detectron2", "eta:&iter:&total_loss:&time:",
    rf"\beta:.*?\biter:\s*(?P<step>\d+)\s+total_loss:\s*(?P<loss>{NAN})"
    rf".*?\btime:\s*(?P<step_time_s>{N})(?:.*?data_time:\s*(?P<data_time_s>{N}))?"
    rf"(?:.*?max_mem:\s*(?P<memory_mib>{N})M)?",
    "eta: 1:02:03  iter: 19  total_loss: 1.234  loss_cls: 0.5  time: 0.4012  data_time: 0.0123"
    "  lr: 0.0005  max_mem: 4012M",
    zero_based=True,
)  # fmt: skip
_MMENGINE = _pattern(
    "mmengine", "(train)&time:",
    rf"\(train\)\s*\[(?P<epoch_from_one>\d+)\]\[\s*(?P<in_epoch>\d+)/(?P<steps_per_epoch>\d+)\]"
    rf".*?\btime:\s*(?P<step_time_s>{N})\s+data_time:\s*(?P<data_time_s>{N})"
    rf"(?:\s+memory:\s*(?P<memory_mib>{N}))?(?:.*?\bloss:\s*(?P<loss>{NAN}))?",
    "Epoch(train) [1][ 50/1000]  lr: 1e-03  eta: 1:00:00  time: 0.3010  data_time: 0.0100"
    "  memory: 4000  loss: 1.2345",
)  # fmt: skip
_FAIRSEQ = _pattern(
    "fairseq", "num_updates=&epoch",
    rf"\bepoch\s+(?P<epoch_from_one>\d+):\s+(?P<in_epoch>\d+)\s*/\s*(?P<steps_per_epoch>\d+)\s+"
    rf"loss=(?P<loss>{NAN})(?:.*?\bwps=(?P<tokens_per_s>{N}))?"
    rf"(?:.*?\bups=(?P<steps_per_s>{N}))?(?:.*?\bbsz=(?P<global_batch>{N}))?"
    rf".*?num_updates=(?P<step>\d+)",
    "train_inner | epoch 001:    100 / 1000 loss=9.12, ppl=560.1, wps=21000, ups=2.51, wpb=8366,"
    " bsz=256, num_updates=100, lr=0.0001, gnorm=2.1, train_wall=40, wall=43",
)  # fmt: skip
_TF_CNN = _pattern(
    "tf_cnn_benchmarks", "images/sec: &jitter",
    rf"^\s*(?P<step>\d+)\s+images/sec:\s*(?P<samples_per_s>{N})\s*\+/-\s*{N}\s*"
    rf"\(jitter\s*=\s*{N}\)\s*(?P<loss>{NAN})?",
    "10\timages/sec: 123.4 +/- 0.5 (jitter = 1.2)\t7.765",
)  # fmt: skip
_KERAS = _pattern(
    "keras", "step&loss:",
    rf"^\s*(?P<in_epoch>\d+)/(?P<steps_per_epoch>\d+)\s.*?"
    rf"(?P<time>{N})\s*(?P<time_unit>us|\u00b5s|ms|s)/(?:step|batch).*?"
    rf"\bloss:\s*(?P<loss>{NAN})",
    "1875/1875 [==============================] - 3s 1ms/step - loss: 0.2956 - accuracy: 0.9137",
)  # fmt: skip
_LIGHTNING = _pattern(
    "lightning", "Epoch&it",
    rf"\bEpoch\s+(?P<epoch_number>\d+)(?:/\d+)?:?\s.*?\b(?P<in_epoch>\d+)/(?P<steps_per_epoch>\d+)\s*"
    rf"(?:\[(?P<clock>[\d:]+)<[\d:?]+,\s*|(?P<clock2>[\d:]+)\s\W+\s[\d:-]+\s)"
    rf"(?:(?P<rate>{N})|\?)\s*(?P<rate_unit>it/s|s/it)(?:.*?(?:train_)?loss(?:_step)?[=:]\s*(?P<loss>{NAN}))?",
    "Epoch 0:  45%|####5     | 450/1000 [01:23<01:40,  5.50it/s, v_num=0, train_loss=0.512]",
)  # fmt: skip
_TQDM = _pattern(
    "tqdm", "%|&<",
    rf"(?P<percent>\d+)%\|[^|]*\|\s*(?P<step>\d+)/(?P<total_steps>\d+)\s*"
    rf"\[(?P<clock>[\d:]+)<[\d:?]+(?:,\s*(?P<rate>{N})?\s*\??(?P<rate_unit>it/s|s/it)?)?"
    rf"(?:.*?\bloss[=:]\s*(?P<loss>{NAN}))?",
    " 45%|####5     | 450/1000 [01:23<01:40,  5.50it/s, loss=0.512]",
)  # fmt: skip
_NANOGPT = _pattern(
    "nanogpt", "iter &loss&time",
    rf"\biter\s+(?P<step>\d+):\s*loss\s+(?P<loss>{NAN}),\s*time\s+(?P<time>{N})(?P<time_unit>ms|s)",
    "iter 10: loss 2.3456, time 123.45ms, mfu 12.34%", zero_based=True,
)  # fmt: skip
SPECIFIC: tuple[Pattern, ...] = (
    _TORCHTITAN, _MEGATRON, _MEGATRON_MEMORY, _NANOTRON, _DEEPSPEED_TIMER, _DEEPSPEED,
    _DEEPSPEED_PIPE, _TIMM, _TORCHVISION, _IMAGENET, _DETECTRON, _MMENGINE, _FAIRSEQ, _TF_CNN,
    _KERAS, _NANOGPT, _LIGHTNING, _TQDM,
)  # fmt: skip
_UNIT = r"(?P<time_unit>ms|s|sec|secs|seconds)"
GENERIC = _pattern(
    "step and numbers", "",
    r"(?i)(?:^|[\s,\[({|])(?:global[ _-]?step|step|iteration|iter|update)s?\s*[:=#]?\s*\[?"
    r"(?P<step>\d[\d,]*)(?:\s*/\s*(?P<total_steps>\d[\d,]*))?(?![\d.%]|[a-z/])",
    "step 10/1000 loss=2.345 time=0.123s",
)  # fmt: skip
# What may stand elsewhere in a line that GENERIC matches, each with a word that it needs.
GENERIC_MORE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (word, re.compile(expression, re.IGNORECASE))
    for word, expression in (
        ("loss", rf"\b(?:train[_ ])?loss\s*[:=]?\s*(?P<loss>{NAN})"),
        ("t", rf"\b(?:step[_ ]time|time/step|time[_ ]per[_ ]step|iter[_ ]time|batch[_ ]time|time|dt)"
              rf"\s*[:=]?\s*(?P<time>{N})\s*{_UNIT}\b(?!/)"),
        ("/s", rf"(?<![\d.,])(?P<samples_per_s>{N})\s*(?:samples|images|imgs?|examples)/s(?!\S*\s*[:=])"),
        ("/s", rf"(?:samples|images|imgs?|examples)/s(?:ec)?\s*[:=]\s*(?P<samples_per_s>{N})"),
        ("/s", rf"(?<![\d.,])(?P<tokens_per_s>{N})\s*(?:tok|tokens)/s(?!\S*\s*[:=])"),
        ("/s", rf"\b(?:tok|tokens)/s(?:ec)?\s*[:=]\s*(?P<tokens_per_s>{N})"),
        ("epoch", rf"\bepoch\s*[:=]?\s*(?P<epoch>{N})(?!\s*/)"),
    )
)  # fmt: skip
HF_DICTIONARY = "huggingface"  # read as a literal, not by an expression
NAMES: tuple[str, ...] = tuple(
    dict.fromkeys((*(p.name for p in SPECIFIC), HF_DICTIONARY, GENERIC.name))
)
