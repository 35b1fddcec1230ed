// losses.pp: losses and metrics of the standard library

// CrossEntropyLoss is the mean over the rows of the negative logarithm of the
// softmax at the label.
cell CrossEntropyLoss {
    construct(logits, label) {
        return mean(cross_entropy(logits, label))
    }
}

// MSELoss is the mean of the squared difference.
cell MSELoss {
    construct(output, label) {
        difference = output - label
        return mean(difference * difference)
    }
}

// Accuracy is the share of rows whose largest logit is at the label.
cell Accuracy {
    construct(logits, label) {
        hits = cast(equal(argmax(logits), label), f32)
        return ratio(sum(hits), logits.shape[0])
    }
}
