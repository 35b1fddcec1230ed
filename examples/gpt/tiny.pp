// tiny.pp: a decoder with a head that shares the weights of the embedding. It
// compiles for any number of stages up to the number of layers (-stages).
const vocab = 64
const context = 16
const dim = 32
const heads = 4
const layers = 4
const batch = 8

@lazy_inline
cell Block {
    ln1  = LayerNorm(dim)
    qkv  = Dense(dim, 3 * dim)
    attn = CausalAttention(heads)
    proj = Dense(dim, dim)
    ln2  = LayerNorm(dim)
    fc1  = Dense(dim, 4 * dim)
    fc2  = Dense(4 * dim, dim)
    construct(x) {
        x = x + proj(attn(qkv(ln1(x))))
        return x + fc2(gelu(fc1(ln2(x))))
    }
}

cell GPT {
    param wte: f32[vocab, dim] = normal(0.02)
    param wpe: f32[context, dim] = normal(0.02)
    for i in 0..layers {
        h[i] = Block() @stage(i * stages / layers)
    }
    lnf = LayerNorm(dim)
    construct(ids) {
        x = gather(wte, ids) + wpe[0..ids.shape[1]]
        for block in h {
            x = block(x)
        }
        return matmul(lnf(x), wte, transpose_b = true)
    }
}

train tiny {
    network         = GPT()
    loss            = CrossEntropyLoss()
    optimizer       = AdamW(lr = 1e-3, weight_decay = 0.01)
    input ids       : i32[batch, context]
    input next      : i32[batch, context]
    stages          = 1
    micro_batch_num = 4
    micro_reduction = mean
    dataset         = npz(env("DATA_PATH", "data/tokens.npz"), columns = ["tokens_x", "tokens_y"]) | batch(batch)
}
