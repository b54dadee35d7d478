"""The category of a kernel by its name: an ordered table in which the first matching pattern wins.

Patterns are searched in a kernel's path (`at::native::reduce_kernel`). A kernel that may do anything is told
by its template arguments (`cutlass::device_kernel<flash::FlashAttnFwdSm90<…>>`), so they are searched too.
Patterns are alternatives of plain text, so a search takes one pass however long the name.

The names come from PyTorch's `aten/src/ATen/native/cuda`, from cuBLAS, cuDNN and NCCL as CUPTI reports them,
from the sources of the libraries named beside each rule, and from traces
(`tests/unit/traces/kernel_names.tsv`).
"""

import re
from enum import StrEnum
from typing import NamedTuple


class Category(StrEnum):
    """The purpose of GPU work."""

    MATMUL = "matmul"
    """Matrix products of any shape and type, and the helper kernels of their libraries."""
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    """Fused attention, and the scans and recurrences that replace it."""
    SOFTMAX = "softmax"
    """Also its logarithm, and a router's gate."""
    LOSS = "loss"
    """Separate from softmax, because over a large vocabulary it deserves a lever of its own."""
    NORMALISATION = "normalisation"
    EMBEDDING = "embedding"
    """Rows looked up by index, and scattered back."""
    OPTIMIZER = "optimizer"
    """Fused steps only. The foreach kernels of an unfused step do any arithmetic and are ELEMENTWISE; the
    phase shows that the optimizer launched them."""
    SORT = "sort"
    """Sorting, searching, top-k, sampling from a distribution, and routing tokens to experts."""
    REDUCTION = "reduction"
    """Also scans and pooling."""
    COPY = "copy"
    """Kernels that compute nothing: they move, rearrange, cast or quantise data, or set it to a value."""
    ELEMENTWISE = "elementwise"
    COMMUNICATION = "communication"
    """Communication between GPUs, and work fused into it."""
    MEMORY = "memory"
    """The driver's own copies and sets."""
    FRAMEWORK = "framework"
    """Only operators of the host: views, allocation, and autograd's own work around the others."""
    OTHER = "other"
    """No rule matches it."""


class CategoryRule(NamedTuple):
    """A category, and the pattern in the names of its kernels."""

    category: Category
    pattern: re.Pattern[str]


def _rule(category: Category, *alternatives: str) -> CategoryRule:
    return CategoryRule(category, re.compile("|".join(alternatives)))


WRAPPER = re.compile(
    # CUTLASS, Composable Kernel, cuBLAS and CuTe launch anything through a function of these names,
    # PyTorch any functor through those: the template arguments tell.
    r"^(?:[Kk]ernel\d?|device_kernel|kentry|run_kernel|_kernel_agent|static_kernel|trampoline_kernel)$"
    r"|elementwise|multi_tensor_apply"
)
"""Names, without namespaces, of kernels whose purpose is in their template arguments."""

RULES = (
    # ROCclr's blit kernels, and what rocprof calls copies and fills.
    _rule(Category.MEMORY, "__amd_rocclr_", "^Copy(?:Host|Device)To", "^FillBuffer$"),
    # NCCL to 2.18 and after, its symmetric kernels, RCCL, MSCCL; NVSHMEM; DeepEP; Transformer Engine's
    # user buffers; the all-reduces of vLLM, TensorRT-LLM, FlashInfer and torch's symmetric memory.
    _rule(
        Category.COMMUNICATION,
        "^nccl(?:Dev|Symk)?(?:Dev)?Kernel|^ncclSymk|^rccl|msccl|nvshmem|deep_ep::|userbuffers",
        "cross_device_reduce|multimem_|lamport|symm_mem|quickreduce|custom_ar",
        "(?:All|(?<![a-z])all)_?(?:[Rr]educe|[Gg]ather|[Tt]o_?[Aa]ll)|[Rr]educe_?[Ss]catter",
    ),
    # Writes into KV caches (vLLM, SGLang, FlashInfer), before attention, whose name many bear.
    _rule(
        Category.COPY,
        "reshape_and_cache|concat_and_cache|copy_blocks|swap_blocks|AppendPagedKV|kv_cache_write",
        "(?:store|set|write)_kv_?(?:cache|buffer)|concat_mla_|deep_gemm::(?:transpose|layout)",
        "scale_1x128_kernel|quantize_with_block_size|^_cache_write$",
    ),
    # MIOpen sets and casts a convolution's tensors by kernels of their own.
    _rule(Category.COPY, "SubTensorOpWith"),
    # cuDNN's implicit products, its engines for Volta and before, its transforms and its CUTLASS build;
    # MIOpen; Composable Kernel; causal_conv1d.
    _rule(
        Category.CONVOLUTION,
        "fprop_implicit|dgrad_implicit|wgrad_implicit|implicit_(?:con|gemm)|cutlass_cudnn|cask_cudnn",
        "convolve|[Cc]onv_?[123][dD]|conv_depthwise|[Ww]inograd|cudnn::cnn|igemm_(?:fwd|bwd|wrw)_gtc",
        r"(?:fprop|dgrad|wgrad)_optimized|scudnn|\dcudnn_|[Mm][Ii]Open(?:Group)?Conv|convolution",
        r"[dw]grad(?:2d)?_(?:alg\d|engine|grouped|1x1)|fft[12]d_(?:r2c|c2r)|flip_filter|mult_and_sum_complex",
        r"cask_\w{0,8}cudnn|AsmConv|[Nn]aive_conv|grouped_conv|Im2d2Col|Col2Im2d",
    ),
    # FlashAttention 2 to 4, FlashMLA, xFormers, cuDNN (with the passes around its backward), FlexAttention,
    # vLLM's paged attention, FlashInfer, TensorRT-LLM, Composable Kernel, AITER, AOTriton; then the
    # kernels of Mamba and of flash-linear-attention. SGLang's and the tutorial's Triton kernels have
    # no more of a name than `_fwd_kernel`.
    _rule(
        Category.ATTENTION,
        "[Ff]lash_?(?:fwd|bwd|[Aa]tt|mla|decod)|^flash::|[Ff]mha|FMHA|sdpa|attention|Attention|attn|Attn",
        "compute_dot_do_o|convert_dq|^mha_|flex_decod|PagedKVCache|RaggedKVCache|MergeStates?",
        r"(?:Single|Batch)(?:Decode|Prefill)With|mla_(?:dec|a\d|stage|combine|decode)|PA_A\d|mqa_logits",
        r"^_?(?:fwd|bwd)_(?:grouped_)?kernel(?:_stage\d|_d[kqv]\w*|_fuse)?$|bwd_preprocess|_fmha_",
        "selective_scan|chunk_scan|chunk_state|chunk_cumsum|state_passing|bmm_chunk|ssd_|ssm_",
        "gated_delta|delta_rule|linear_attn|retention|recurrent_(?:fwd|bwd|gla|kda)|chunk_(?:fwd|bwd|gla)",
        r"wkv\d?_|qk_int\d{0,2}_sv|_sv_f\d|[Ss]age_?attn|_sage(?:_|$)",
        r"^_?chunk(?:wise)?_\w{0,48}(?:fwd|bwd|update|merge_state)|fused_(?:chunk|recurrent)_|_wy_|recompute_w_u",
        r"^_?parallel_\w{0,32}(?:fwd|bwd)|solve_tril|merge_\d+x\d+_to_|(?:fwd|bwd)_(?:h|o|dh|dqk?w?g?|dkd?v)(?:_|$)",
        "_(?:kda|gdn|msa|vsa|gqa|xqa)_|mla_(?:prefill|merge)|selective_state_|flashkda|_warp_decode",
        "_decoding_one_step|_decode_one_step|_neighborhood_",
    ),
    # PyTorch, apex, Liger (which takes the gradient too), Cut Cross Entropy.
    _rule(
        Category.LOSS,
        "nll_loss|cross_?entropy|CrossEntropy|XEntropy|xentropy|_cce_|_ce_(?:fwd|bwd)|ctc_loss|kldiv|kl_div",
        "_jsd(?:_|$)|mse_(?:loss|kernel)|l1_loss|huber|_dpo_|grpo_|_ce_(?:forward|backward)|head_loss",
    ),
    # cuBLAS, cuBLASLt (`nvjet` from Hopper on), CUTLASS, MAGMA; Tensile and hipBLASLt (`Cijk`), Composable
    # Kernel, rocBLAS; DeepGEMM; experts' products and weights of few bits (Marlin, GPTQ, AWQ, AITER); the
    # products of Peakward's fused step of decode, with what is fused into them.
    _rule(
        Category.MATMUL,
        r"(?<!fb)gemm(?!a)|GEMM|Gemm(?!a)|gemv|Gemv|matmul|MatMul|nvjet|xmma|cutlass_?\d|cutlass3x|^Kernel2$",
        "splitK|split_k|SplitK|ReduceSplit|cublas(?!Transpose)|epilogue::impl|scal_kernel|cublasLt::",
        "Cijk_|rocblas_|LLMM|LLGemm|wvSplit|[Mm]arlin|gptq|awq|exl2|scaled_mm|mul_mat_|bmm_|_bmm|addmm",
        r"_(?:mm|mv)(?:_|$)|grouped_mm|fused_moe_kernel|fmoe_|moe_kernel|w\d\d?a\d\d?_\w{0,40}kernel|dot_kernel",
        r"[bs]gmv|bf16_fp4_|_situ_\w{0,8}moe|spmm|csrmm|csrmv|[Ss]ddmm|syrk|trsm|mmq(?:<|_|$)|_moe_\w{0,12}_(?:d[WX]|\w{0,8}proj)",
        "RNN_blockPersist|persistRNN|^decode_step_(?:rows_)?(?:rotated|gated|product|added|logits)$",
    ),
    # PyTorch (where a layer norm's weight gradient is GammaBeta…), apex and Transformer Engine (`ln_`),
    # vLLM, SGLang, FlashInfer, Liger, Composable Kernel, cuDNN (`bn_`).
    _rule(
        Category.NORMALISATION,
        "(?:[Ll]ayer|rms|RMS|Rms|[Bb]atch|[Gg]roup|[Ii]nstance|weight|l2|L2)_?[Nn]orm(?!alize_w|Functor)",
        r"GammaBeta|RowwiseMoments|^(?:\w+::)*(?:ln|bn)_(?:fwd|bwd|fw|bw)|rms_kernel|QKNorm|qk_?norm|QNorm",
        "ComputeInternalGradients|cuApply|cuCompute(?:Grad|Part)|NormFwd|NormBwd|_norm_(?:fwd|bwd|kernel)",
        "addRmsBias|norm::|[Ww]elford|(?<![a-z])renorm|LRN",
    ),
    # Rotary embeddings look nothing up: before the embeddings.
    _rule(Category.ELEMENTWISE, "[Rr]otary|(?<![a-z])rope|Rope(?![a-z])|RoPE"),
    # PyTorch; FBGEMM's tables, whose backward pass updates them too, before the optimizers.
    _rule(
        Category.EMBEDDING,
        "[Ee]mbedding(?!s)|EmbeddingBag|indexSelect|indexFunc|index_?elementwise|index_put|index_copy",
        "gather_kernel|_gather|gather_|[Ss]catter|compute_grad_weight|sum_and_scatter|krn_partial",
        "bounds_check_indices|linearize_index|indexing_backward|take_put|embedding_|get_rows",
        "^decode_step_(?:rows_)?embedded$",
    ),
    # torch's fused Adam, AdamW, SGD and Adagrad, apex, bitsandbytes; `_update` is Peakward's own AdamW
    # (`kernels/ops/adamw/triton.py`).
    _rule(
        Category.OPTIMIZER,
        "Fused(?:Adam|Sgd|SGD|Adagrad|Optimizer)|LAMBStage",
        r"(?:Adam|SGD|Sgd|Adagrad|LAMB|Lamb|Lion|NovoGrad)\w{0,20}Functor|_?adamw?_(?:kernel|step)",
        "kOptimizer|kPreconditionOptimizer|optimizer_(?:update|precondition)|fused_(?:adam|sgd|lion|lamb)|multi_tensor_adam|^_update(?:_8bit|_bf16)?$|^_?adamw",
    ),
    _rule(
        Category.SOFTMAX,
        "[Ss]oft_?[Mm]ax|softmax|SoftMax|topk_?[Gg]ating|logsumexp|sparsemax|sinkhorn",
    ),
    # CUB, PyTorch, FlashInfer's samplers, the experts' routers.
    _rule(
        Category.SORT,
        "[Rr]adix|[Ss]ort|Top[KP]|(?<![a-z])top_?[KkPp]|btopk|[Mm]erge(?:Sort|_sort)|bitonic|searchsorted|bucketize|[Uu]nique",
        "multinomial|(?<!up)(?<!down)[Ss]ampling|fill_reverse_indices|moe_align|count_and_sort|ExpertMaps",
        "[Rr]outing|_router|expert_(?:offset|count)|ExpertPrefixSum|digit",
    ),
    _rule(
        Category.REDUCTION,
        "[Rr]educe|reduction|[Ss]can(?:Kernel|Init|_|By)|cumsum|cumprod|arg_?(?:max|min)|DeviceSelect",
        "DeviceCompact|[Pp]ool(?:[123]d)?(?:_|$)|[Pp]ooling|CumulativeSum|PercentileClipping|distance_|L2NormFunctor|LpNorm|lpnorm|l2norm|[Mm]oe_?sum|[Ff]inalize",
        "(?:^|_)(?:sum|mean|amax|norm|count)_|DeviceRunLength|_sums?$|[Hh]istogram|^decode_step_chosen$",
    ),
    # Functors of PyTorch's that move data, before elementwise kernels at large.
    _rule(
        Category.COPY,
        r"copy_kernel|CopyFunctor|(?<!\w)Copy<|FillFunctor|hfp8|to_float|repeat_interleave",
        "compute_cuda_kernel|CatArray|chunk_cat|(?<![a-z])pad[123]d_|_pad_(?:forward|backward)",
    ),
    # Functors at large; activations (vLLM, FlashInfer, Liger), of which some quantise their result.
    _rule(
        Category.ELEMENTWISE,
        "elementwise|multi_tensor_apply|for_each|[Pp]arallel_?[Ff]or|act_and_mul|[Aa]ctivation|[Ss]ilu",
        "[Ss]wi(?:glu|sh)|[Gg]elu|GELU|[Gg]eglu|[Rr]elu|[Ss]igmoid|[Dd]ropout|[a-z]glu_|(?<![a-z])elu_",
        "elemWise|elementWise|(?:lstm|gru)_cell|gated_act|(?:unary|binary)_kernel",
        "softplus|softcapping|log1p|logaddexp|addcmul|addcdiv|token_shift|_gate_(?:fwd|bwd)|_mhc_|_dyt_",
        "Op(?:[2-5]d)?Tensor|axpy|linspace|_assert_async|slot_mapping|correction_kernel",
    ),
    _rule(
        Category.COPY,
        "[Cc]opy|(?<![a-z])[Cc]ast|(?<![a-z])cat_|[Cc]oncat|[Tt]ranspose|[Pp]ermute|[Qq]uant|[Cc]ontiguous",
        "FP8|fp8|nchwToNhwc|nhwcToNchw|(?<![a-z])(?:un)?pack(?:_|$)|packunpack|swizzle|cpy_|_read_half_|[Pp]adding|unfold|im2col|expandInput|zero_",
        "ZeroOut|MeanScaleKernel|SubMeanKernel|diag_kernel|matrix_to_m16|flag_kernel|write_indices",
        "(?<![a-z])(?:fill|memset|flip|roll|gather|slice|stack|convert)(?![a-z])|[Hh]adamard",
    ),
    # Random numbers, masks; then arithmetic by name.
    _rule(
        Category.ELEMENTWISE,
        "distribution_|philox|triu_tril|arange|range_cuda|[Pp]ointwise|op_(?:tensor|generic)|_penalt|Penalt",
        "(?<![a-z])(?:add|sub|mul|div|pow|exp|sqrt|neg|where|mask|masked|scale|clamp|tanh|bias|residual)"
        "(?![a-z])|(?i:unscale)|computeStrides|update_scale",
    ),
)
"""The order matters: attention comes before products, products before norms, and the wide rules last."""
