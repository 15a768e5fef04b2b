// Writes legacy documents as the real Yjs makes them, and reads one back.
import fs from 'node:fs'
import * as Y from 'yjs'

const [, , command, path] = process.argv

function nested(fields) {
  const map = new Y.Map()
  for (const [key, value] of Object.entries(fields)) map.set(key, value)
  return map
}

function written() {
  const doc = new Y.Doc()
  const messages = doc.getMap('messages')
  messages.set('plain', {
    fromAgentId: 'ann', toAgentId: 'bob', content: { n: 5, f: 1.5, list: [1, 'zwei', null] },
    status: 'pending', createdAt: 1700000000000,
  })
  const body = new Y.Text('hello')
  body.insert(5, ' wörld 😀')
  body.format(0, 5, { bold: true })
  const to = new Y.Array()
  to.push(['bob', 'cat'])
  messages.set('nested', nested({
    from: 'ann', toAgents: to, text: body, corrId: 'c-1', timestamp: 1700000001,
    meta: nested({ deep: nested({ er: 1 }) }),
  }))
  messages.set('read', nested({ from: 'ann', to: 'bob', body: 'old', status: 'pending' }))
  messages.get('read').set('status', 'read')
  messages.set('deleted', { from: 'ann', to: 'bob', content: 'never' })
  messages.delete('deleted')
  const tasks = doc.getMap('tasks')
  tasks.set('t1', nested({ title: new Y.Text('build'), description: 'it', assignedTo: 'bob', status: 'pending' }))
  doc.getMap('nodes').set('n1', { tier: 'edge' })
  return doc
}

if (command === 'write') {
  const doc = written()
  fs.writeFileSync(`${path}/dump.json`, JSON.stringify(doc.toJSON()))
  fs.writeFileSync(`${path}/dump.bin`, Y.encodeStateAsUpdate(doc))
  fs.writeFileSync(`${path}/v2.bin`, Y.encodeStateAsUpdateV2(doc))
  const before = Y.encodeStateVector(doc)
  doc.getMap('messages').set('late', { from: 'ann', to: 'bob', content: 'late' })
  fs.writeFileSync(`${path}/part.bin`, Y.encodeStateAsUpdate(doc, before))
  doc.getMap('messages').set('bytes', { from: 'ann', to: 'bob', content: new Uint8Array([1, 2]) })
  doc.getMap('messages').set('nan', { from: 'ann', to: 'bob', content: NaN })
  doc.getMap('messages').set('element', new Y.XmlElement('p'))
  doc.getMap('messages').set('subdoc', new Y.Doc())
  fs.writeFileSync(`${path}/odd.bin`, Y.encodeStateAsUpdate(doc))
  const list = new Y.Doc()
  list.getArray('messages').push([{ from: 'ann' }])
  fs.writeFileSync(`${path}/list.bin`, Y.encodeStateAsUpdate(list))
  const crowd = new Y.Doc()
  for (let author = 0; author < 123; author++) {
    const one = new Y.Doc()
    one.getMap('messages').set(`m${author}`, { from: 'ann', to: 'bob', content: author })
    Y.applyUpdate(crowd, Y.encodeStateAsUpdate(one))
  }
  fs.writeFileSync(`${path}/crowd.bin`, Y.encodeStateAsUpdate(crowd))
} else {
  const doc = new Y.Doc()
  Y.applyUpdate(doc, fs.readFileSync(path))
  doc.getMap('messages')
  // An old reader notes what it has read, in the very document it was given.
  if (command === 'mark') {
    for (const one of doc.getMap('messages').values()) one.set('status', 'read')
    fs.writeFileSync(path, Y.encodeStateAsUpdate(doc))
  }
  process.stdout.write(JSON.stringify(doc.toJSON()))
}
