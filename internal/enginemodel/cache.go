package enginemodel

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// cache is the KV cache: a fixed set of blocks, a list of the free ones in the order in which they will be given out, and an
// index of published blocks. Every block is either held (refs > 0) or in the free list, never both.
type cache struct {
	blocks []block
	index  map[uint64]int32 // chained hash -> the one block published under it, held or free
	// head and tail end the free list; none if it is empty.
	head, tail int32
	free       int
	// cached counts the free blocks that are still published.
	cached int
}

type block struct {
	refs       int32
	published  bool
	hash       uint64 // meaningful only if published
	prev, next int32  // meaningful only if refs is 0
}

const none = int32(-1)

func newCache(blocks int) *cache {
	c := &cache{blocks: make([]block, blocks), index: make(map[uint64]int32), head: none, tail: none}
	for id := range c.blocks {
		c.append(int32(id))
	}
	return c
}

// chain turns content hashes into hashes that each depend on all that precede them.
func chain(contents []uint64) []uint64 {
	chained := make([]uint64, len(contents))
	var pair [16]byte
	for i, content := range contents {
		binary.LittleEndian.PutUint64(pair[8:], content)
		chained[i] = xxhash.Sum64(pair[:])
		binary.LittleEndian.PutUint64(pair[:8], chained[i])
	}
	return chained
}

// match returns the published blocks of the longest known prefix of the chain, and how many of them are free.
func (c *cache) match(chained []uint64) (ids []int32, free int) {
	for _, hash := range chained {
		id, ok := c.index[hash]
		if !ok {
			break
		}
		if c.blocks[id].refs == 0 {
			free++
		}
		ids = append(ids, id)
	}
	return ids, free
}

// share takes one more hold on a published block.
func (c *cache) share(id int32) {
	b := &c.blocks[id]
	if b.refs == 0 {
		c.unlink(id)
		c.cached--
	}
	b.refs++
}

// take gives out the first free block, evicting what it held. There must be one.
func (c *cache) take() int32 {
	id := c.head
	c.unlink(id)
	b := &c.blocks[id]
	if b.published {
		delete(c.index, b.hash)
		b.published = false
		c.cached--
	}
	b.refs = 1
	return id
}

// publish makes a held block findable. If another block already holds the same content, that one stays the published one.
func (c *cache) publish(id int32, hash uint64) {
	if _, known := c.index[hash]; known {
		return
	}
	c.index[hash] = id
	c.blocks[id].published, c.blocks[id].hash = true, hash
}

// release gives back all blocks of a request. The end of the chain goes into the free list first, so that it is evicted before
// the beginning, which more prompts share.
func (c *cache) release(ids []int32) {
	for i := len(ids) - 1; i >= 0; i-- {
		id := ids[i]
		b := &c.blocks[id]
		if b.refs--; b.refs > 0 {
			continue
		}
		if b.published {
			c.append(id)
			c.cached++
		} else {
			c.prepend(id)
		}
	}
}

func (c *cache) append(id int32) {
	c.blocks[id].prev, c.blocks[id].next = c.tail, none
	if c.tail == none {
		c.head = id
	} else {
		c.blocks[c.tail].next = id
	}
	c.tail = id
	c.free++
}

func (c *cache) prepend(id int32) {
	c.blocks[id].prev, c.blocks[id].next = none, c.head
	if c.head == none {
		c.tail = id
	} else {
		c.blocks[c.head].prev = id
	}
	c.head = id
	c.free++
}

func (c *cache) unlink(id int32) {
	b := &c.blocks[id]
	if b.prev == none {
		c.head = b.next
	} else {
		c.blocks[b.prev].next = b.next
	}
	if b.next == none {
		c.tail = b.prev
	} else {
		c.blocks[b.next].prev = b.prev
	}
	c.free--
}
