// vocab.pp: inference in four stages. The table of the embedding is handed to
// the head, so the first and the last stage both keep it.
const vocab = 32
const dim = 32

cell VocabEmbedding {
    param embedding_table: f32[vocab, dim] = ones()
    construct(ids) {
        return squeeze(gather(embedding_table, ids), axis = 1), embedding_table
    }
}

cell Head {
    construct(state, table) {
        return matmul(state, table, transpose_b = true)
    }
}

@lazy_inline
cell Network {
    word_embedding = VocabEmbedding() @stage(0)
    layer1         = Dense(dim, dim) @stage(1)
    layer2         = Dense(dim, dim) @stage(2)
    head           = Head() @stage(3)
    construct(x) {
        state, table = word_embedding(x)
        logits = head(layer2(layer1(state)), table)
        return logits
    }
}

infer vocab {
    network          = Network()
    input x          : i32[8, 1]
    micro_batch_num  = 4
    output_broadcast = true
}
