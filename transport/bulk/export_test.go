package bulk

// CutFrom sets the least size of chunks.
func (o *Outbound) CutFrom(bytes int) { o.least = bytes }
