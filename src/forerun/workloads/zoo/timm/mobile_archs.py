"""Blocks of mobile networks by stage, and the members of each family (see `mobile`)."""

from __future__ import annotations

from typing import Any

_B = "se0.25"
ARCHS: dict[str, tuple[str, ...]] = {
    "mnasnet_b1": (
        "ds_r1_k3_s1_c16_noskip",
        "ir_r3_k3_s2_e3_c24",
        "ir_r3_k5_s2_e3_c40",
        "ir_r3_k5_s2_e6_c80",
        "ir_r2_k3_s1_e6_c96",
        "ir_r4_k5_s2_e6_c192",
        "ir_r1_k3_s1_e6_c320_noskip",
    ),
    "mnasnet_a1": (
        "ds_r1_k3_s1_c16_noskip",
        "ir_r2_k3_s2_e6_c24",
        f"ir_r3_k5_s2_e3_c40_{_B}",
        "ir_r4_k3_s2_e6_c80",
        f"ir_r2_k3_s1_e6_c112_{_B}",
        f"ir_r3_k5_s2_e6_c160_{_B}",
        "ir_r1_k3_s1_e6_c320_noskip",
    ),
    "mnasnet_small": (
        "ds_r1_k3_s1_c8",
        "ir_r1_k3_s2_e3_c16",
        "ir_r2_k3_s2_e6_c16",
        f"ir_r4_k5_s2_e6_c32_{_B}",
        f"ir_r3_k3_s1_e6_c32_{_B}",
        f"ir_r3_k5_s2_e6_c88_{_B}",
        "ir_r1_k3_s1_e6_c144",
    ),
    "mobilenetv2": (
        "ds_r1_k3_s1_c16",
        "ir_r2_k3_s2_e6_c24",
        "ir_r3_k3_s2_e6_c32",
        "ir_r4_k3_s2_e6_c64",
        "ir_r3_k3_s1_e6_c96",
        "ir_r3_k3_s2_e6_c160",
        "ir_r1_k3_s1_e6_c320",
    ),
    "fbnetc": (
        "ir_r1_k3_s1_e1_c16",
        "ir_r1_k3_s2_e6_c24 ir_r2_k3_s1_e1_c24",
        "ir_r1_k5_s2_e6_c32 ir_r1_k5_s1_e3_c32 ir_r1_k5_s1_e6_c32 ir_r1_k3_s1_e6_c32",
        "ir_r1_k5_s2_e6_c64 ir_r1_k5_s1_e3_c64 ir_r2_k5_s1_e6_c64",
        "ir_r3_k5_s1_e6_c112 ir_r1_k5_s1_e3_c112",
        "ir_r4_k5_s2_e6_c184",
        "ir_r1_k3_s1_e6_c352",
    ),
    "spnasnet": (
        "ds_r1_k3_s1_c16_noskip",
        "ir_r3_k3_s2_e3_c24",
        "ir_r1_k5_s2_e6_c40 ir_r3_k3_s1_e3_c40",
        "ir_r1_k5_s2_e6_c80 ir_r3_k3_s1_e3_c80",
        "ir_r1_k5_s1_e6_c96 ir_r3_k5_s1_e3_c96",
        "ir_r4_k5_s2_e6_c192",
        "ir_r1_k3_s1_e6_c320_noskip",
    ),
    "efficientnet": (
        f"ds_r1_k3_s1_c16_{_B}",
        f"ir_r2_k3_s2_e6_c24_{_B}",
        f"ir_r2_k5_s2_e6_c40_{_B}",
        f"ir_r3_k3_s2_e6_c80_{_B}",
        f"ir_r3_k5_s1_e6_c112_{_B}",
        f"ir_r4_k5_s2_e6_c192_{_B}",
        f"ir_r1_k3_s1_e6_c320_{_B}",
    ),
    "efficientnet_edge": (
        "er_r1_k3_s1_e4_c24_fc24_noskip",
        "er_r2_k3_s2_e8_c32",
        "er_r4_k3_s2_e8_c48",
        "ir_r5_k5_s2_e8_c96",
        "ir_r4_k5_s1_e8_c144",
        "ir_r2_k5_s2_e8_c192",
    ),
    "efficientnetv2_base": (
        "cn_r1_k3_s1_c16",
        "er_r2_k3_s2_e4_c32",
        "er_r2_k3_s2_e4_c48",
        f"ir_r3_k3_s2_e4_c96_{_B}",
        f"ir_r5_k3_s1_e6_c112_{_B}",
        f"ir_r8_k3_s2_e6_c192_{_B}",
    ),
    "efficientnetv2_s": (
        "cn_r2_k3_s1_c24",
        "er_r4_k3_s2_e4_c48",
        "er_r4_k3_s2_e4_c64",
        f"ir_r6_k3_s2_e4_c128_{_B}",
        f"ir_r9_k3_s1_e6_c160_{_B}",
        f"ir_r15_k3_s2_e6_c256_{_B}",
    ),
    "efficientnetv2_rw_s": (
        "er_r2_k3_s1_e1_c24",
        "er_r4_k3_s2_e4_c48",
        "er_r4_k3_s2_e4_c64",
        f"ir_r6_k3_s2_e4_c128_{_B}",
        f"ir_r9_k3_s1_e6_c160_{_B}",
        f"ir_r15_k3_s2_e6_c272_{_B}",
    ),
    "efficientnetv2_m": (
        "cn_r3_k3_s1_c24",
        "er_r5_k3_s2_e4_c48",
        "er_r5_k3_s2_e4_c80",
        f"ir_r7_k3_s2_e4_c160_{_B}",
        f"ir_r14_k3_s1_e6_c176_{_B}",
        f"ir_r18_k3_s2_e6_c304_{_B}",
        f"ir_r5_k3_s1_e6_c512_{_B}",
    ),
    "efficientnetv2_l": (
        "cn_r4_k3_s1_c32",
        "er_r7_k3_s2_e4_c64",
        "er_r7_k3_s2_e4_c96",
        f"ir_r10_k3_s2_e4_c192_{_B}",
        f"ir_r19_k3_s1_e6_c224_{_B}",
        f"ir_r25_k3_s2_e6_c384_{_B}",
        f"ir_r7_k3_s1_e6_c640_{_B}",
    ),
    "efficientnetv2_xl": (
        "cn_r4_k3_s1_c32",
        "er_r8_k3_s2_e4_c64",
        "er_r8_k3_s2_e4_c96",
        f"ir_r16_k3_s2_e4_c192_{_B}",
        f"ir_r24_k3_s1_e6_c256_{_B}",
        f"ir_r32_k3_s2_e6_c512_{_B}",
        f"ir_r8_k3_s1_e6_c640_{_B}",
    ),
    "mixnet_s": (
        "ds_r1_k3_s1_c16",
        "ir_r1_k3_a_p_s2_e6_c24 ir_r1_k3_a_p_s1_e3_c24",
        "ir_r1_k3.5.7_s2_e6_c40_se0.5 ir_r3_k3.5_a_p_s1_e6_c40_se0.5",
        f"ir_r1_k3.5.7_p_s2_e6_c80_{_B} ir_r2_k3.5_p_s1_e6_c80_{_B}",
        "ir_r1_k3.5.7_a_p_s1_e6_c120_se0.5 ir_r2_k3.5.7.9_a_p_s1_e3_c120_se0.5",
        "ir_r1_k3.5.7.9.11_s2_e6_c200_se0.5 ir_r2_k3.5.7.9_p_s1_e6_c200_se0.5",
    ),
    "mixnet_m": (
        "ds_r1_k3_s1_c24",
        "ir_r1_k3.5.7_a_p_s2_e6_c32 ir_r1_k3_a_p_s1_e3_c32",
        "ir_r1_k3.5.7.9_s2_e6_c40_se0.5 ir_r3_k3.5_a_p_s1_e6_c40_se0.5",
        f"ir_r1_k3.5.7_s2_e6_c80_{_B} ir_r3_k3.5.7.9_a_p_s1_e6_c80_{_B}",
        "ir_r1_k3_s1_e6_c120_se0.5 ir_r3_k3.5.7.9_a_p_s1_e3_c120_se0.5",
        "ir_r1_k3.5.7.9_s2_e6_c200_se0.5 ir_r3_k3.5.7.9_p_s1_e6_c200_se0.5",
    ),
    "lcnet": (
        "dsa_r1_k3_s1_c32",
        "dsa_r2_k3_s2_c64",
        "dsa_r2_k3_s2_c128",
        "dsa_r1_k3_s2_c256 dsa_r1_k5_s1_c256",
        "dsa_r4_k5_s1_c256",
        f"dsa_r2_k5_s2_c512_{_B}",
    ),
    "mobilenetv3_large": (
        "ds_r1_k3_s1_c16",
        "ir_r1_k3_s2_e4_c24 ir_r1_k3_s1_e3_c24",
        f"ir_r3_k5_s2_e3_c40_{_B}",
        "ir_r1_k3_s2_e6_c80 ir_r1_k3_s1_e2.5_c80 ir_r2_k3_s1_e2.3_c80",
        f"ir_r2_k3_s1_e6_c112_{_B}",
        f"ir_r3_k5_s2_e6_c160_{_B}",
        "cn_r1_k1_s1_c960",
    ),
    "mobilenetv3_large_minimal": (
        "ds_r1_k3_s1_c16",
        "ir_r1_k3_s2_e4_c24 ir_r1_k3_s1_e3_c24",
        "ir_r3_k3_s2_e3_c40",
        "ir_r1_k3_s2_e6_c80 ir_r1_k3_s1_e2.5_c80 ir_r2_k3_s1_e2.3_c80",
        "ir_r2_k3_s1_e6_c112",
        "ir_r3_k3_s2_e6_c160",
        "cn_r1_k1_s1_c960",
    ),
    "mobilenetv3_small": (
        f"ds_r1_k3_s2_c16_{_B}",
        "ir_r1_k3_s2_e4.5_c24 ir_r1_k3_s1_e3.67_c24",
        f"ir_r1_k5_s2_e4_c40_{_B} ir_r2_k5_s1_e6_c40_{_B}",
        f"ir_r2_k5_s1_e3_c48_{_B}",
        f"ir_r3_k5_s2_e6_c96_{_B}",
        "cn_r1_k1_s1_c576",
    ),
    "mobilenetv3_small_minimal": (
        "ds_r1_k3_s2_c16",
        "ir_r1_k3_s2_e4.5_c24 ir_r1_k3_s1_e3.67_c24",
        "ir_r1_k3_s2_e4_c40 ir_r2_k3_s1_e6_c40",
        "ir_r2_k3_s1_e3_c48",
        "ir_r3_k3_s2_e6_c96",
        "cn_r1_k1_s1_c576",
    ),
    "fbnetv3_b": (
        "ds_r2_k3_s1_c16",
        "ir_r1_k5_s2_e4_c24 ir_r3_k5_s1_e2_c24",
        f"ir_r1_k5_s2_e5_c40_{_B} ir_r4_k5_s1_e3_c40_{_B}",
        "ir_r1_k5_s2_e5_c72 ir_r4_k3_s1_e3_c72",
        f"ir_r1_k3_s1_e5_c120_{_B} ir_r5_k5_s1_e3_c120_{_B}",
        f"ir_r1_k3_s2_e6_c184_{_B} ir_r5_k5_s1_e4_c184_{_B} ir_r1_k5_s1_e6_c224_{_B}",
        "cn_r1_k1_s1_c1344",
    ),
    "fbnetv3_d": (
        "ds_r2_k3_s1_c16",
        "ir_r1_k3_s2_e5_c24 ir_r5_k3_s1_e2_c24",
        f"ir_r1_k5_s2_e4_c40_{_B} ir_r4_k3_s1_e3_c40_{_B}",
        "ir_r1_k3_s2_e5_c72 ir_r4_k3_s1_e3_c72",
        f"ir_r1_k3_s1_e5_c128_{_B} ir_r6_k5_s1_e3_c128_{_B}",
        f"ir_r1_k3_s2_e6_c208_{_B} ir_r5_k5_s1_e5_c208_{_B} ir_r1_k5_s1_e6_c240_{_B}",
        "cn_r1_k1_s1_c1440",
    ),
    "fbnetv3_g": (
        "ds_r3_k3_s1_c24",
        "ir_r1_k5_s2_e4_c40 ir_r4_k5_s1_e2_c40",
        f"ir_r1_k5_s2_e4_c56_{_B} ir_r4_k5_s1_e3_c56_{_B}",
        "ir_r1_k5_s2_e5_c104 ir_r4_k3_s1_e3_c104",
        f"ir_r1_k3_s1_e5_c160_{_B} ir_r8_k5_s1_e3_c160_{_B}",
        f"ir_r1_k3_s2_e6_c264_{_B} ir_r6_k5_s1_e5_c264_{_B} ir_r2_k5_s1_e6_c288_{_B}",
        "cn_r1_k1_s1_c1728",
    ),
}

Fields = dict[str, Any]
_SIZES: dict[str, tuple[float, float]] = {
    "b0": (1.0, 1.0), "b1": (1.0, 1.1), "b2": (1.1, 1.2), "b3": (1.2, 1.4), "b4": (1.4, 1.8),
    "b5": (1.6, 2.2), "b6": (1.8, 2.6), "b7": (2.0, 3.1), "b8": (2.2, 3.6), "l2": (4.3, 5.3),
}  # fmt: skip
_EDGES = {"es": "b0", "em": "b1", "el": "b3"}
_LITES = {"lite0": "b0", "lite1": "b1", "lite2": "b2", "lite3": "b3", "lite4": "b4"}


def _sized(size: str, **fields: Any) -> Fields:
    width, depth = _SIZES[size]
    return {"width": width, "depth": depth, **fields}


def _models() -> dict[str, Fields]:  # noqa: C901  # a list, family by family
    found: dict[str, Fields] = {}
    for size in _SIZES:
        found[f"efficientnet_{size}"] = _sized(size, arch="efficientnet")
    for name, size in _EDGES.items():
        found[f"efficientnet_{name}"] = _sized(size, arch="efficientnet_edge", act="relu")
    for name, size in _LITES.items():
        found[f"efficientnet_{name}"] = _sized(
            size, arch="efficientnet", act="relu6", gates="none", fixed_stem=True, fixed_head=True,
            fixed_ends=True,
        )  # fmt: skip
    for size in ("b0", "b1", "b2", "b3"):
        found[f"efficientnetv2_{size}"] = _sized(size, arch="efficientnetv2_base", limit=0.0)
    for size in ("s", "m", "l", "xl"):
        found[f"efficientnetv2_{size}"] = {"arch": f"efficientnetv2_{size}"}
        found[f"efficientnetv2_{size}"] |= {"stem": 32 if size in ("l", "xl") else 24}
    rw: Fields = {"arch": "efficientnetv2_rw_s", "stem": 24, "features": 1792}
    tiny: Fields = {"arch": "efficientnetv2_s", "width": 0.8, "depth": 0.9, "stem": 24}
    found["efficientnetv2_rw_s"] = rw
    found["efficientnetv2_rw_m"] = {**rw, "width": 1.2, "depth": (1.2,) * 4 + (1.6,) * 2}
    found["efficientnetv2_rw_t"] = {**tiny, "features": 1280}
    found["gc_efficientnetv2_rw_t"] = {**tiny, "gates": "context"}
    found["efficientnet_b0_gn"] = {"arch": "efficientnet", "norm": "group"}
    found["efficientnet_b0_g8_gn"] = {"arch": "efficientnet", "norm": "group", "group": 8}
    found["efficientnet_b0_g16_evos"] = {"arch": "efficientnet", "norm": "group", "group": 16}
    found["efficientnet_b0_g16_evos"]["divisor"] = 16
    found["efficientnet_b3_gn"] = _sized("b3", arch="efficientnet", norm="group", divisor=16)
    found["efficientnet_b3_g8_gn"] = _sized(
        "b3", arch="efficientnet", norm="group", group=8, divisor=16
    )
    for width in (35, 50, 75, 100, 140):
        share = width / 100
        found[f"mobilenetv2_{width:03}"] = {
            "arch": "mobilenetv2",
            "width": share,
            "act": "relu6",
            "fixed_head": width <= 100,
        }
    for name, share, depth in (("110d", 1.1, 1.2), ("120d", 1.2, 1.4)):
        found[f"mobilenetv2_{name}"] = {
            "arch": "mobilenetv2", "width": share, "depth": depth, "act": "relu6",
            "fixed_stem": True, "fixed_head": True, "fixed_ends": True,
        }  # fmt: skip
    for width in (35, 50, 75, 100, 140):
        share = width / 100
        found[f"mnasnet_{width:03}"] = {
            "arch": "mnasnet_b1",
            "width": share,
            "act": "relu",
            "fixed_head": True,
        }
        found[f"semnasnet_{width:03}"] = {**found[f"mnasnet_{width:03}"], "arch": "mnasnet_a1"}
    found["mnasnet_a1"], found["mnasnet_b1"] = found["semnasnet_100"], found["mnasnet_100"]
    found["mnasnet_small"] = {"arch": "mnasnet_small", "stem": 8, "act": "relu"}
    found["fbnetc_100"] = {"arch": "fbnetc", "stem": 16, "features": 1984, "act": "relu"}
    found["spnasnet_100"] = {"arch": "spnasnet", "act": "relu"}
    mixed: Fields = {"features": 1536, "fixed_head": True, "act": "relu"}
    found["mixnet_s"] = {"arch": "mixnet_s", "stem": 16, **mixed}
    for size, share, depth in (("m", 1.0, 1.0), ("l", 1.3, 1.0), ("xl", 1.6, 1.2),
                               ("xxl", 2.4, 1.3)):  # fmt: skip
        found[f"mixnet_{size}"] = {
            "arch": "mixnet_m",
            "stem": 24,
            "width": share,
            "depth": depth,
            "round_depth": True,
            **mixed,
        }
    for letter, share, depth in (("a", 1.0, 1.2), ("b", 0.75, 1.1), ("c", 0.54, 0.85),
                                 ("d", 0.54, 0.695), ("e", 0.51, 0.6)):  # fmt: skip
        found[f"tinynet_{letter}"] = {
            "arch": "efficientnet", "width": share, "depth": depth, "fixed_stem": True,
            "fixed_head": True, "round_depth": True,
        }  # fmt: skip
    third: Fields = {
        "stem": 16, "act": "hardswish", "late_head": True, "gate_of_expanded": True,
        "fixed_head": True,
    }  # fmt: skip
    for width in (35, 50, 75, 100, 150):
        found[f"lcnet_{width:03}"] = {"arch": "lcnet", "width": width / 100, **third}
    for kind, features in (("large", 1280), ("small", 1024)):
        for width in (50, 75, 100):
            found[f"mobilenetv3_{kind}_{width:03}"] = {
                "arch": f"mobilenetv3_{kind}", "width": width / 100, **third, "features": features,
                "fixed_stem": width < 75,
            }  # fmt: skip
        found[f"mobilenetv3_{kind}_minimal_100"] = {
            "arch": f"mobilenetv3_{kind}_minimal",
            **third,
            "features": features,
            "act": "relu",
        }
    found["mobilenetv3_rw"] = found["mobilenetv3_large_100"]
    for letter in ("b", "d", "g"):
        found[f"fbnetv3_{letter}"] = {
            "arch": f"fbnetv3_{letter}", **third, "stem": 32 if letter == "g" else 24 if letter == "d"
            else 16, "features": 1984, "gate_of_expanded": False,
        }  # fmt: skip
    return found


MODELS: dict[str, Fields] = _models()
